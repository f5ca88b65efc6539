"""Who takes part in a benchmark: the flags that name peers, and the contenders that follow.

Knows how each peer is started; nothing of what they run. Invariant: a peer that is not here is in
the list all the same, as absent with its reason.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from benchmarks.peers.contract import Contender, Kind, Peer, PeerAbsent
from benchmarks.peers.llama_server import llama_server
from benchmarks.peers.specd_daemon import specd_peer
from benchmarks.peers.vllm_server import vllm_server
from benchmarks.peers.worker import Worker, worker
from specd.cli.child import Child
from specd.config import ServeSettings
from specd.errors import StartFailed
from specd.model.formats import Kernels, WeightFormat

SPECD, SPECD_LOOKUP = "specd", "specd, ngram"
LOOKUP_TOKENS = 7  # what specd's own drafter may draft, by default
_SPARE_POSITIONS = 64  # some peers want room behind the last token, for drafts


@dataclass(frozen=True, slots=True)
class Field:
    """The sizes that a peer has to be started for. context: positions of one stream."""

    model: Path
    threads: int
    streams: int
    context: int


def add_peer_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the model, specd's own settings and where peers are."""
    parser.add_argument("--model", required=True, help="a catalog name or a GGUF file")
    parser.add_argument(
        "--weights",
        choices=get_args(WeightFormat),
        default=ServeSettings.model_fields["weights"].default,
    )
    parser.add_argument("--kernels", choices=get_args(Kernels), default="auto", help="specd's")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of everybody")
    parser.add_argument("--drafter", default="ngram", help="specd's")
    parser.add_argument("--llama-server", metavar="BINARY")
    parser.add_argument(
        "--llama-server-lookup",
        metavar="FLAGS",
        default="--spec-type ngram-simple",
        help="flags of its speculation [%(default)s]",
    )
    parser.add_argument("--llama-python", metavar="PYTHON", help="with llama-cpp-python")
    parser.add_argument("--transformers", metavar="PYTHON", help="with transformers and torch")
    parser.add_argument("--vllm", metavar="PYTHON", help="with vLLM's CPU build")
    parser.add_argument("--vllm-model", metavar="FOLDER", help="the same weights for vLLM")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="CONTENDER",
        help="these and specd, by their names in the table",
    )
    parser.add_argument("--draft-model", metavar="FILE", help="for peers' assisted generation")


def field_of(chosen: argparse.Namespace, model: Path, streams: int, longest: int) -> Field:
    """The sizes of a run. longest: tokens of the longest prompt and its answer."""
    return Field(model, chosen.threads, streams, longest + _SPARE_POSITIONS)


def contenders(chosen: argparse.Namespace, field: Field, child: Child) -> list[Contender]:
    """Everybody, or specd and those of `--only`; specd first.

    Raises:
        StartFailed: `--only` names somebody who is not in the list.
    """
    everybody = _everybody(chosen, field, child)
    if chosen.only is None:
        return everybody
    names = [contender.name for contender in everybody]
    if unknown := [name for name in chosen.only if name not in names]:
        raise StartFailed(f"there is no contender {unknown[0]!r}; there are: {'; '.join(names)}")
    kept = {SPECD, SPECD_LOOKUP, *chosen.only}
    return [contender for contender in everybody if contender.name in kept]


def _everybody(chosen: argparse.Namespace, field: Field, child: Child) -> list[Contender]:
    return [
        Contender(SPECD, "plain", lambda: specd_peer(child, None)),
        Contender(SPECD_LOOKUP, "lookup", lambda: specd_peer(child, chosen.drafter)),
        *_llama_server(chosen, field),
        *_llama_python(chosen, field),
        *_transformers(chosen, field),
        *_vllm(chosen, field),
    ]


def reference(kind: Kind) -> str:
    """The contender of specd that others of this kind are compared with."""
    return SPECD if kind == "plain" else SPECD_LOOKUP


def _llama_server(chosen: argparse.Namespace, field: Field) -> Iterator[Contender]:
    def start(*flags: str) -> Callable[[], AbstractContextManager[Peer]]:
        if chosen.llama_server is None:
            return _not_given("--llama-server")
        return lambda: llama_server(
            chosen.llama_server,
            field.model,
            threads=field.threads,
            streams=field.streams,
            context=field.context,
            flags=flags,
        )

    yield Contender("llama-server", "plain", start())
    yield Contender(
        "llama-server, ngram", "lookup", start(*shlex.split(chosen.llama_server_lookup))
    )
    if chosen.draft_model is not None:
        draft = ("--spec-type", "draft-simple", "--spec-draft-model", chosen.draft_model)
        yield Contender("llama-server, draft", "draft", start(*draft))


def _llama_python(chosen: argparse.Namespace, field: Field) -> Iterator[Contender]:
    def start(*flags: str) -> Callable[[], AbstractContextManager[Peer]]:
        if chosen.llama_python is None:
            return _not_given("--llama-python")
        return lambda: llama_python_worker(chosen.llama_python, field, *flags)

    yield Contender("llama-cpp-python", "plain", start())
    yield Contender("llama-cpp-python, lookup", "lookup", start("--lookup"))


def llama_python_worker(python: str, field: Field, *flags: str) -> AbstractContextManager[Worker]:
    """A worker of `llama_python.py`."""
    sizes = ("--threads", str(field.threads), "--context", str(field.context))
    return worker(
        python, "benchmarks.peers.llama_python", "--model", str(field.model), *sizes, *flags
    )


def _transformers(chosen: argparse.Namespace, field: Field) -> Iterator[Contender]:
    def start(*flags: str) -> Callable[[], AbstractContextManager[Peer]]:
        if chosen.transformers is None:
            return _not_given("--transformers")
        model = ("--model", str(field.model), "--threads", str(field.threads))
        module = "benchmarks.peers.transformers_python"
        return lambda: worker(chosen.transformers, module, *model, *flags)

    yield Contender("transformers, bf16", "plain", start())
    yield Contender("transformers, bf16, lookup", "lookup", start("--lookup", str(LOOKUP_TOKENS)))
    if chosen.draft_model is not None:
        assisted = start("--assistant", chosen.draft_model)
        yield Contender("transformers, bf16, assisted", "draft", assisted)


def _vllm(chosen: argparse.Namespace, field: Field) -> Iterator[Contender]:
    def start(lookup: int) -> Callable[[], AbstractContextManager[Peer]]:
        if chosen.vllm is None or chosen.vllm_model is None:
            return _not_given("--vllm and --vllm-model")
        return lambda: vllm_server(
            chosen.vllm,
            Path(chosen.vllm_model),
            threads=field.threads,
            streams=field.streams,
            context=field.context,
            lookup=lookup,
        )

    yield Contender("vllm, bf16", "plain", start(0))
    yield Contender("vllm, bf16, ngram", "lookup", start(LOOKUP_TOKENS))


def _not_given(flag: str) -> Callable[[], AbstractContextManager[Peer]]:
    @contextmanager
    def start() -> Iterator[Peer]:
        raise PeerAbsent(f"{flag} not given")
        yield  # a generator, for `contextmanager`

    return start
