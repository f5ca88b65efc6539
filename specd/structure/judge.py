"""Whether a grammar compiles in bounded time and memory, found out where it can do no harm.

Owns the process of `trial.py`: starts it when it is first needed, kills it when it takes too long,
and starts another for the next grammar. All methods belong to one thread.
Invariant: `check` returns or raises within its patience, but for the start of a process.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from contextlib import suppress

from specd.structure.bridge import TokenizerBridge
from specd.structure.trial import MAX_SECONDS

# Not from the folder that the daemon runs in: what lies there is not ours.
_COMMAND = (sys.executable, "-P", "-m", "specd.structure.trial")
# What a fault of the library ends it with. Allocations that fail end it with SIGABRT.
_BY_ITSELF = (-signal.SIGSEGV, -signal.SIGILL, -signal.SIGFPE)

# Of processor time, for a mask: the step of every request may wait for it. Ordinary grammars take
# less than 1 ms, a choice of 96 KB up to 60.
MAX_MASK_S = 0.2
# A start takes 0.2 to 0.4 s on a quiet machine.
_START_LIMIT_S = 60.0


class TooCostly(Exception):
    """A grammar that takes too much time or memory; the message says which."""


class TrialBroken(Exception):
    """The process fails by itself, whatever it is told."""


class Judge:
    """Tries grammars out, one at a time."""

    def __init__(self, bridge: TokenizerBridge, patience_s: float = MAX_SECONDS) -> None:
        told = {
            "size": bridge.vocab_size,
            "special": {token: bridge.spelled([token]).decode() for token in bridge.special_ids},
            "ends": sorted(bridge.end_ids),
        }
        self._introduction = json.dumps(told)
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, order: str) -> float:
        """Let `order`, one line of JSON, be compiled; returns the processor's seconds that it took.

        A grammar whose masks take too long is too costly as well.

        Raises:
            TooCostly, TrialBroken.
        """
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it has died since the last order
        if self._process is None:
            self._process = _started()
            self._ask(self._process, self._introduction, _START_LIMIT_S)
        return self._ask(self._process, order, self._patience_s)

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            _ended(self._process)
            self._process = None

    def _ask(self, process: subprocess.Popen[bytes], line: str, limit_s: float) -> float:
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
        # Not `select`, which takes no file beyond the first thousand.
        waiting = select.poll()
        waiting.register(process.stdout, select.POLLIN)
        if not waiting.poll(limit_s * 1000):
            self.close()
            raise TooCostly(f"takes more than {limit_s:g} s to compile")
        if answer := process.stdout.readline():
            compile_s, mask_s = map(float, answer.split())
            if mask_s > MAX_MASK_S:
                raise TooCostly(f"takes {mask_s:.2f} s for a mask; at most {MAX_MASK_S:g} s")
            return compile_s
        status = process.wait()
        self.close()
        if status >= 0:
            raise TrialBroken(f"{' '.join(_COMMAND)} ended with status {status}")
        if status in _BY_ITSELF:
            raise TooCostly("is beyond what the library can compile")
        raise TooCostly("takes too much time or memory to compile")


def _started() -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        _COMMAND, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with process:  # closes its pipes and waits
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
