"""llama.cpp's own server, called over its HTTP API.

Knows the flags and the events of `llama-server`. Prompt caches are off, and each stream has a slot
with room for the longest prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.contract import Answer, Drafted, finished
from benchmarks.peers.http_server import HOST, free_port, http_server, stream_all

_VERSION_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """A `Peer`."""

    pid: int
    version: str
    port: int

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Answer]:
        """As `Peer` says."""
        requests = [
            {
                "prompt": list(ids),
                "n_predict": num_tokens,
                "temperature": 0.0,
                "samplers": ["temperature"],  # the others cost time, and change nothing
                "ignore_eos": True,
                "stream": True,
                "return_tokens": True,
                "cache_prompt": False,
            }
            for ids in prompts
        ]
        found = stream_all(self.port, "/completion", requests, _new_tokens, num_tokens)
        return [
            Answer(answer.token_ids, answer.timing, _drafted(last, num_tokens))
            for answer, last in found
        ]


def _new_tokens(event: dict[str, Any]) -> Sequence[int]:
    # The last event may repeat all tokens.
    return () if event.get("stop") else event["tokens"]


def _drafted(last: dict[str, Any], num_tokens: int) -> Drafted:
    timings = last.get("timings", {})
    accepted = timings.get("draft_n_accepted", 0)
    return Drafted(num_tokens - accepted, timings.get("draft_n", 0), accepted, None)


@contextmanager
def llama_server(
    binary: str, model: Path, *, threads: int, streams: int, context: int, flags: Sequence[str] = ()
) -> Iterator[LlamaServer]:
    """Run the server. context: positions of one stream. flags: put behind ours.

    Raises:
        PeerAbsent: as `http_server` does.
    """
    port = free_port()
    command = [binary, "--model", str(model), "--host", HOST, "--port", str(port)]
    command += ["--threads", str(threads), "--parallel", str(streams), "--cache-ram", "0"]
    command += ["--ctx-size", str(streams * context), "--no-kv-unified", "--no-ui", *flags]
    version = _version(binary)
    with http_server(command, port, "/health") as process:
        yield LlamaServer(process.pid, version, port)


def _version(binary: str) -> str:
    """The line that `--version` prints."""
    done = finished([binary, "--version"], _VERSION_LIMIT_S)
    lines = (done.stderr + done.stdout).splitlines()
    told = next((line for line in lines if line.startswith("version")), "version unknown")
    return f"llama-server {told.removeprefix('version: ')}"
