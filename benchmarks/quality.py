"""What a weight format costs in quality: logits against fp32, on a text of our own.

    python -m benchmarks.quality --model smollm2-135m --weights int4 bf16 [--llama-python PYTHON]

The text is cut into windows, each computed alone from its beginning. Of each choice: the mean
divergence KL(fp32 || choice) of the next token, in nats; the share of positions with the same
likeliest token; and the perplexity. llama.cpp runs the same windows from the same file. The last
line is one JSON document. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.contenders import Field, llama_python_worker
from benchmarks.peers.contract import PeerAbsent, PeerFailed
from benchmarks.peers.worker import Worker, worker
from benchmarks.prompts import text_ids
from specd.errors import StartFailed
from specd.model.catalog import resolve
from specd.model.formats import WeightFormat

REFERENCE: WeightFormat = "fp32"
_ROWS = 64  # of logits at a time, which are doubles of the vocabulary's size

Floats = npt.NDArray[np.floating[Any]]


@dataclass(slots=True)
class Quality:
    """Sums over `positions` that have logits; `predicted` of them have a next token in the text."""

    positions: int = 0
    divergence: float = 0.0
    agreements: int = 0
    predicted: int = 0
    loss: float = 0.0

    def add(self, logits: Floats, wanted: Floats, ids: Sequence[int]) -> None:
        """Take one window: logits of every position [len(ids), vocab], and those of fp32."""
        for start in range(0, len(ids), _ROWS):
            rows = slice(start, start + _ROWS)
            found, true = _log_softmax(logits[rows]), _log_softmax(wanted[rows])
            self.divergence += float((np.exp(true) * (true - found)).sum())
            self.agreements += int((found.argmax(1) == true.argmax(1)).sum())
            self.positions += len(found)
            following = np.asarray(ids[start + 1 : start + 1 + len(found)])
            self.loss -= float(found[np.arange(len(following)), following].sum())
            self.predicted += len(following)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "kl_divergence": self.divergence / self.positions,
            "same_likeliest_token": self.agreements / self.positions,
            "perplexity": math.exp(self.loss / self.predicted),
            "positions": self.positions,
        }


def _log_softmax(logits: Floats) -> Floats:
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    shifted: Floats = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return shifted


def windows(ids: Sequence[int], length: int, most: int) -> Iterator[list[int]]:
    """At most `most` tokens, in windows of `length`; a last one of a single token is left out."""
    for start in range(0, min(len(ids), most), length):
        window = list(ids[start : min(start + length, most)])
        if len(window) > 1:
            yield window


class Reference:
    """The logits of fp32, on disk: they may be larger than the memory."""

    def __init__(self, folder: Path, cut: Sequence[list[int]]) -> None:
        self._folder = folder
        self.cut = cut

    def write(self, peer: Worker) -> Quality:
        """Compute them, and judge them by themselves. Raises PeerFailed."""
        quality = Quality()
        for number, ids in enumerate(self.cut):
            peer.ask("logits", ids=ids, path=str(self._path(number)))
            logits = np.load(self._path(number), mmap_mode="r")
            quality.add(logits, logits, ids)
        return quality

    def judge(self, peer: Worker) -> Quality:
        """Compute the same windows and compare. Raises PeerFailed."""
        quality, path = Quality(), self._folder / "found.npy"
        for number, ids in enumerate(self.cut):
            peer.ask("logits", ids=ids, path=str(path))
            found, wanted = np.load(path, mmap_mode="r"), np.load(self._path(number), mmap_mode="r")
            if found.shape != wanted.shape:
                raise PeerFailed(f"logits of shape {found.shape} instead of {wanted.shape}")
            quality.add(found, wanted, ids)
        return quality

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.npy"


def run(chosen: argparse.Namespace) -> int:
    """Judge every choice; returns the exit status. Raises StartFailed, PeerAbsent, PeerFailed."""
    model = resolve(chosen.model)
    cut = list(windows(text_ids(model), chosen.window, chosen.tokens))
    notes = Console(stderr=True)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="specd-quality-") as folder:
        reference = Reference(Path(folder), cut)
        notes.print(f"computing {len(cut)} windows in {REFERENCE}", style="dim", highlight=False)
        with _specd(model, REFERENCE, chosen.threads) as peer:
            found = reference.write(peer)
        results.append({"choice": f"specd, {REFERENCE}", **found.document()})
        for name, start in _choices(chosen, model):
            notes.print(f"judging {name}", style="dim", highlight=False)
            with start() as peer:
                results.append({"choice": name, **reference.judge(peer).document()})
    console = report.console()
    console.print(_table(results))
    if chosen.llama_python is None:
        report.show(["absent: llama.cpp (--llama-python not given)"], console)
    print(json.dumps({"benchmark": "quality", "settings": vars(chosen), "results": results}))
    return 0


def _choices(
    chosen: argparse.Namespace, model: Path
) -> Iterator[tuple[str, Callable[[], AbstractContextManager[Worker]]]]:
    for weights in chosen.weights:
        yield f"specd, {weights}", partial(_specd, model, weights, chosen.threads)
    if chosen.llama_python is not None:
        field = Field(model, chosen.threads, streams=1, context=chosen.window)
        python = chosen.llama_python
        yield "llama.cpp", lambda: llama_python_worker(python, field, "--all-logits")


def _specd(model: Path, weights: str, threads: int) -> AbstractContextManager[Worker]:
    settings = ("--model", str(model), "--weights", weights, "--threads", str(threads))
    return worker(sys.executable, "benchmarks.peers.specd_runner", *settings)


def _table(results: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="against fp32", box=None)
    table.add_column("choice")
    for title in ("KL divergence", "same likeliest token", "perplexity", "positions"):
        table.add_column(title, justify="right")
    for one in results:
        table.add_row(
            one["choice"],
            f"{one['kl_divergence']:.5f}",
            f"{one['same_likeliest_token']:.2%}",
            f"{one['perplexity']:.3f}",
            str(one["positions"]),
        )
    return table


def main() -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a catalog name or a GGUF file")
    choices = [one for one in get_args(WeightFormat) if one != REFERENCE]
    parser.add_argument("--weights", nargs="+", choices=choices, default=choices)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--window", type=int, default=512, help="tokens [%(default)s]")
    parser.add_argument("--tokens", type=int, default=2500, help="of the text [%(default)s]")
    parser.add_argument("--llama-python", metavar="PYTHON", help="with llama-cpp-python")
    chosen = parser.parse_args()
    if min(chosen.window, chosen.tokens) < 2:
        parser.error("--window and --tokens take at least 2: a token has to predict another")
    try:
        return run(chosen)
    except (StartFailed, PeerAbsent, PeerFailed) as error:
        print(f"quality: {error}", file=sys.stderr)
        print(json.dumps({"benchmark": "quality", "error": str(error)}))
        return 1


if __name__ == "__main__":
    sys.exit(main())
