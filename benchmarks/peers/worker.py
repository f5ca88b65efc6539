"""The parent's side of a worker: a module that runs under another interpreter and waits for work.

Knows pipes and JSON lines; the child's side is `talk.py`. Invariant: a worker that nobody asks
sleeps in a read, and it is gone when its block is left.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.contract import Answer, PeerAbsent, PeerFailed, checked
from specd.cli.timing import Timing

ROOT = Path(__file__).parents[2]
_LOG_BYTES = 1500


class Worker:
    """A `Peer`, and more: `ask` runs any of the child's operations."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid
        reply = self._read()
        if "absent" in reply:
            raise PeerAbsent(reply["absent"])
        self.version: str = reply["version"]

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Run an operation and wait for its result. Raises PeerFailed."""
        assert self._process.stdin is not None
        request = json.dumps({"operation": operation, "arguments": arguments})
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(self._last_words()) from None
        reply = self._read()
        if "failed" in reply:
            raise PeerFailed(reply["failed"])
        return reply["result"]

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Answer]:
        """As `Peer` says."""
        found = self.ask("run", prompts=[list(ids) for ids in prompts], num_tokens=num_tokens)
        return checked([_answer(one) for one in found], num_tokens)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(self._last_words())
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _last_words(self) -> str:
        self._process.wait()
        said = self._log.read_text(errors="replace")[-_LOG_BYTES:].strip()
        return f"it ended with status {self._process.returncode}: {said}"


def _answer(document: dict[str, Any]) -> Answer:
    arrivals = tuple((at, count) for at, count in document["arrivals"])
    return Answer(tuple(document["token_ids"]), Timing(document["start_s"], arrivals))


@contextmanager
def worker(python: str, module: str, *arguments: str) -> Iterator[Worker]:
    """Run `module` of this project under the interpreter `python`.

    Raises:
        PeerAbsent: there is no such interpreter, or it lacks what the module needs.
        PeerFailed: the child ended while it loaded.
    """
    with tempfile.TemporaryDirectory(prefix="specd-peer-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    [python, "-m", module, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    text=True,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
            except OSError as error:
                raise PeerAbsent(f"{python}: {error.strerror}") from None
        with process:
            try:
                yield Worker(process, log)
            finally:
                process.kill()
