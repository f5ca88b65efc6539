"""Starts a daemon as its own process for a benchmark, and measures streams against it.

Knows the ready file and the client; nothing of what is compared.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specd_client import Client, Delta, Finished, SequenceFinished
from specd_client.events import DrafterTally

_POLL_S = 0.05
_START_LIMIT_S = 300.0
_STOP_LIMIT_S = 30.0


class DaemonFailed(Exception):
    """The daemon ended before it was ready, or did not end cleanly."""


@contextmanager
def running_daemon(*flags: str) -> Iterator[str]:
    """Run `specd serve` with these flags; gives its address, and stops it at the end.

    Raises:
        DaemonFailed: with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="specd-") as folder:
        ready, log = Path(folder, "ready.json"), Path(folder, "log")
        command = [sys.executable, "-m", "specd.cli.main", "serve", "--listen", "127.0.0.1:0"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--ready-file", str(ready), *flags], stdout=output, stderr=output
            )
        try:
            yield _wait_ready(process, ready, log)
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(_STOP_LIMIT_S)
        if status != 0:
            raise DaemonFailed(f"the daemon ended with status {status}:\n{log.read_text()}")


def _wait_ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> str:
    deadline = time.monotonic() + _START_LIMIT_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise DaemonFailed(f"the daemon did not get ready:\n{log.read_text()}")
        time.sleep(_POLL_S)
    address: str = json.loads(ready.read_text())["address"]
    return address


@dataclass(frozen=True, slots=True)
class Run:
    """One measured stream. first_s, total_s: from the call to the first and the last event."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    first_s: float
    total_s: float
    tally: DrafterTally

    @property
    def tokens_per_s(self) -> float:
        return len(self.token_ids) / self.total_s

    @property
    def accepted_length(self) -> float:
        """Tokens per verify step: accepted draft tokens and the target's own."""
        return 1 + self.tally.accepted_draft_tokens / self.tally.verify_steps


async def measure(client: Client, prompt: Mapping[str, Any], **options: Any) -> Run:
    """Stream one answer and time it."""
    texts: list[str] = []
    tokens: list[int] = []
    reason, tally, first_s = "", None, 0.0
    start = time.perf_counter()
    async for event in client.stream(**prompt, return_token_ids=True, **options):
        match event:
            case Delta():
                first_s = first_s or time.perf_counter() - start
                texts.append(event.text)
                tokens.extend(event.token_ids)
            case SequenceFinished():
                reason = event.finish_reason.name
            case Finished():
                tally = event.speculation.total
    assert tally is not None
    total_s = time.perf_counter() - start
    return Run("".join(texts), tuple(tokens), reason, first_s, total_s, tally)
