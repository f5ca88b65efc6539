"""The child's side of a worker: one JSON document per line in, one out.

Runs under a peer's own interpreter, where nothing but the standard library and that peer is
installed: imports nothing else. Whatever a library prints goes to stderr.

Invariant: every request gets exactly one reply, a result or the name of what went wrong.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

Operation = Callable[..., Any]


def serve(load: Callable[[], tuple[str, Mapping[str, Operation]]]) -> None:
    """Load, tell the version, then answer until stdin ends. A missing library is told as absent."""
    replies = _private_stdout()
    try:
        version, operations = load()
    except ImportError as error:
        _send(replies, {"absent": str(error)})
        return
    except Exception as error:
        _send(replies, {"absent": _told(error)})
        return
    _send(replies, {"version": version})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            result = operations[request["operation"]](**request["arguments"])
        except Exception as error:
            _send(replies, {"failed": _told(error)})
        else:
            _send(replies, {"result": result})


def timed_answer(start_s: float, arrivals: list[tuple[float, list[int]]]) -> dict[str, Any]:
    """One stream as JSON; times are of this machine's monotonic clock."""
    return {
        "start_s": start_s,
        "arrivals": [(at, len(ids)) for at, ids in arrivals],
        "token_ids": [token for _, ids in arrivals for token in ids],
    }


def repeated_s(action: Callable[[], object], count: int) -> list[float]:
    """How long each of `count` calls takes, in seconds."""
    found = []
    for _ in range(count):
        start_s = time.perf_counter()
        action()
        found.append(time.perf_counter() - start_s)
    return found


def _private_stdout() -> TextIO:
    private = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return private


def _send(replies: TextIO, document: Mapping[str, Any]) -> None:
    replies.write(json.dumps(document) + "\n")
    replies.flush()


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
