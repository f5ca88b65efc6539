"""A peer that is a server: a process with an HTTP port, and streams of server-sent events.

Knows how such a process starts, is found ready and ends, and the clock; what is in the events is
its callers' matter. Invariant: the process is gone when its block is left.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.contract import Answer, PeerAbsent, PeerFailed, checked
from specd.cli.timing import Timing

HOST = "127.0.0.1"
_POLL_S = 0.1
_START_LIMIT_S = 600.0
_STOP_LIMIT_S = 10.0
_ANSWER_LIMIT_S = 3600.0
_LOG_BYTES = 1500
_DATA = b"data: "

# One event to its new token ids.
Read = Callable[[dict[str, Any]], Sequence[int]]


@dataclass(slots=True)
class Stream:
    """One call, in a thread of its own: the reading of one must not delay another."""

    start_s: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    def follow(self, port: int, path: str, request: Mapping[str, Any], read: Read) -> None:
        """Post the request and take the events to the end; a problem is kept, not raised."""
        connection = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_LIMIT_S)
        try:
            self.start_s = time.perf_counter()
            body, headers = json.dumps(request), {"Content-Type": "application/json"}
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                said = response.read().decode(errors="replace")
                self.problem = f"status {response.status}: {said[:_LOG_BYTES]}"
                return
            for line in response:
                if line.startswith(_DATA):
                    self._take(line.removeprefix(_DATA).strip(), read)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            connection.close()

    def _take(self, data: bytes, read: Read) -> None:
        at = time.perf_counter()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            self.problem = f"an error event: {event['error']}"
            return
        self.last = event
        if ids := read(event):
            self.arrivals.append((at, len(ids)))
            self.token_ids += ids


def stream_all(
    port: int, path: str, requests: Sequence[Mapping[str, Any]], read: Read, num_tokens: int
) -> list[tuple[Answer, dict[str, Any]]]:
    """Run all requests at once; each answer with its last event. Raises PeerFailed."""
    streams = [Stream() for _ in requests]
    threads = [
        threading.Thread(target=stream.follow, args=(port, path, request, read))
        for stream, request in zip(streams, requests, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream in streams:
        if stream.problem is not None:
            raise PeerFailed(stream.problem)
    answers = [
        Answer(tuple(stream.token_ids), Timing(stream.start_s, tuple(stream.arrivals)))
        for stream in streams
    ]
    checked(answers, num_tokens)
    return list(zip(answers, [stream.last for stream in streams], strict=True))


@contextmanager
def http_server(
    command: Sequence[str], port: int, health: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command that serves HTTP at `port`, once GET `health` says 200.

    Raises:
        PeerAbsent: there is no such program, or it ended before it was ready.
    """
    with tempfile.TemporaryDirectory(prefix="specd-peer-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **(environment or {})},
                )
            except OSError as error:
                raise PeerAbsent(f"{command[0]}: {error.strerror}") from None
        try:
            _wait_ready(process, port, health, log)
            yield process
        finally:
            _stop(process)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_ready(process: subprocess.Popen[bytes], port: int, health: str, log: Path) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while not _is_healthy(port, health):
        said = log.read_text(errors="replace")[-_LOG_BYTES:].strip()
        if process.poll() is not None:
            raise PeerAbsent(f"it ended with status {process.returncode}: {said}")
        if time.monotonic() > deadline:
            raise PeerAbsent(f"it was not ready within {_START_LIMIT_S:g} s: {said}")
        time.sleep(_POLL_S)


def _is_healthy(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=_STOP_LIMIT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_LIMIT_S)
    finally:  # an impatient user's second interrupt included
        process.kill()
        process.wait()
