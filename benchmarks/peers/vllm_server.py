"""vLLM's server, of its CPU build, called over the API that it shares with OpenAI's.

Knows the flags and the events of `vllm.entrypoints.openai.api_server`. It reads no GGUF files on a
CPU: it is given a folder with the same weights (docs/benchmarks.md). Prefix caching is off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.contract import Answer, PeerAbsent, finished
from benchmarks.peers.http_server import HOST, free_port, http_server, stream_all

_NAME = "model"
_VERSION_LIMIT_S = 120.0
_KV_GIB = 4


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A `Peer`."""

    pid: int
    version: str
    port: int

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Answer]:
        """As `Peer` says."""
        requests = [
            {
                "model": _NAME,
                "prompt": list(ids),
                "max_tokens": num_tokens,
                "temperature": 0.0,
                "ignore_eos": True,
                "stream": True,
                "return_token_ids": True,
            }
            for ids in prompts
        ]
        found = stream_all(self.port, "/v1/completions", requests, _new_tokens, num_tokens)
        return [answer for answer, _ in found]


def _new_tokens(event: dict[str, Any]) -> Sequence[int]:
    choices = event.get("choices") or [{}]
    return choices[0].get("token_ids") or ()


@contextmanager
def vllm_server(
    python: str, folder: Path, *, threads: int, streams: int, context: int, lookup: int = 0
) -> Iterator[VllmServer]:
    """Run the server. lookup: draft tokens of its n-gram speculation, 0 for none.

    Raises:
        PeerAbsent: as `http_server` does.
    """
    port = free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", _NAME, "--host", HOST, "--port", str(port)]
    command += ["--max-model-len", str(context), "--max-num-seqs", str(streams)]
    command += ["--no-enable-prefix-caching", "--dtype", "bfloat16"]
    if lookup:
        speculation = {"method": "ngram", "num_speculative_tokens": lookup, "prompt_lookup_max": 4}
        command += ["--speculative-config", json.dumps(speculation)]
    cores = f"0-{threads - 1}"
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(_KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        # Its own programs lie beside the interpreter.
        "PATH": os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")]),
    }
    version = _version(python)
    with http_server(command, port, "/health", environment) as process:
        yield VllmServer(process.pid, version, port)


def _version(python: str) -> str:
    """Asked of the installed distribution: to import it takes many seconds."""
    code = "import importlib.metadata as m; print(next(f'{n} {m.version(n)}' for n in " + (
        "('vllm-cpu', 'vllm') if n in {d.name for d in m.distributions()}))"
    )
    done = finished([python, "-c", code], _VERSION_LIMIT_S)
    if done.returncode:
        raise PeerAbsent(f"{python} has no vllm")
    return done.stdout.strip()
