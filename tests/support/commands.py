"""Runs `specd` as people and scripts do: at a pipe, or at a terminal with keys and colours.

Knows pipes and pseudo-terminals, nothing of what the commands print. Invariant: however a test
ends, its process is gone.
"""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.daemon import environment

SPECD = Path(sys.executable).with_name("specd")
PATIENCE_S = 60.0
CTRL_C, CTRL_D = "\x03", "\x04"
# Opening a terminal makes it the controlling one of a session that has none, so that its Ctrl-C is
# a signal. The shell opens it because nothing may run between fork and exec in this process.
_ATTACH = 'exec 0<>"$0" 1>&0 2>"${STDERR:-/dev/stdout}"; exec "$@"'
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def specd(
    *arguments: str, env: Mapping[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """Run a command at pipes until it ends."""
    done = subprocess.run(
        [str(SPECD), *arguments],
        input=stdin,
        capture_output=True,
        env=environment({"PYTHONUTF8": "1"} | dict(env or {})),
        timeout=PATIENCE_S,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


class Terminal:
    """A command at a terminal. output: everything that it showed until now, colours included."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, slave: int) -> None:
        self._process = process
        self._master = master
        self._slave: int | None = slave  # kept until the command has opened the terminal itself
        self._bytes = b""
        self._seen = 0

    @property
    def output(self) -> str:
        return self._bytes.decode()

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> str:
        """Wait until `text` shows up behind what was waited for before; returns all up to it."""
        deadline = time.monotonic() + PATIENCE_S
        while (place := self._plain().find(text, self._seen)) < 0:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} did not come:\n{self._plain()}")
        start, self._seen = self._seen, place + len(text)
        return self._plain()[start : self._seen]

    def press(self, key: str) -> None:
        """Press a key until something shows: readline misses one as its prompt appears."""
        deadline = time.monotonic() + PATIENCE_S
        self.type(key)
        while not self._read(time.monotonic() + 1):
            if time.monotonic() > deadline:
                raise AssertionError(f"nothing comes of {key!r}:\n{self._plain()}")
            self.type(key)

    def wait_end(self) -> int:
        """Wait until the command has ended; returns its status."""
        deadline = time.monotonic() + PATIENCE_S
        while self._process.poll() is None:
            if not self._read(time.monotonic() + 0.1) and time.monotonic() > deadline:
                raise AssertionError(f"it does not end:\n{self._plain()}")
        while self._read(time.monotonic()):
            pass
        return self._process.returncode

    def _plain(self) -> str:
        return _CONTROL.sub("", self._bytes.decode(errors="ignore"))

    def _read(self, deadline: float) -> bool:
        """Take what the command shows next; False where nothing more comes."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            found = os.read(self._master, 1 << 16)
        except OSError:  # how Linux tells that nobody has the terminal open any more
            return False
        self._bytes += found
        self._close_slave()
        return bool(found)

    def close(self) -> None:
        """End the command if it lives, and the terminal."""
        self._process.kill()
        self._process.wait()
        self._close_slave()
        os.close(self._master)

    def _close_slave(self) -> None:
        if self._slave is not None:
            os.close(self._slave)
            self._slave = None


@contextmanager
def terminal(
    *arguments: str, env: Mapping[str, str] | None = None, stderr: Path | None = None
) -> Iterator[Terminal]:
    """Run a command at a terminal. stderr: a file for it; None shows it too."""
    master, slave = pty.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.OPOST  # the bytes as they are written
    attributes[3] |= termios.NOFLSH  # else Ctrl-C discards what is on its way
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    more = {"TERM": "xterm-256color", "PYTHONUTF8": "1"} | dict(env or {})
    if stderr is not None:
        more["STDERR"] = str(stderr)
    process = subprocess.Popen(
        ["sh", "-c", _ATTACH, os.ttyname(slave), str(SPECD), *arguments],
        env=environment(more),
        start_new_session=True,
    )
    shown = Terminal(process, master, slave)
    try:
        yield shown
    finally:
        shown.close()


def without_colours(text: str) -> str:
    """The text alone."""
    return _COLOUR.sub("", text)


def colours_of(text: str) -> Iterator[tuple[str, str]]:
    """Each character with the colour codes that hold for it, "" for none."""
    colour, place = "", 0
    for match in _COLOUR.finditer(text):
        yield from ((character, colour) for character in text[place : match.start()])
        colour, place = match[0].removeprefix("\x1b[0m"), match.end()
    yield from ((character, colour) for character in text[place:])
