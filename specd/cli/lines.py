"""Where the lines of a conversation come from: a terminal, with editing, or a pipe.

Knows stdin; nothing of what lines mean. Invariant: each line of a pipe is read as a whole, so a
broken one leaves the next alone.
"""

from __future__ import annotations

import sys

PROMPT = "> "


class NotText(Exception):
    """A line that cannot be read in stdin's encoding."""


class Lines:
    """The lines of stdin. interactive: somebody sits before it."""

    def __init__(self) -> None:
        self.interactive = sys.stdin is not None and sys.stdin.isatty()  # None: it is closed
        self._edits = self.interactive and sys.stdout is not None and sys.stdout.isatty()
        if self._edits:
            import readline  # noqa: F401  # gives `input` its line editing and history

    def read(self) -> str | None:
        """The next line without its end; None where there are no more.

        Raises:
            NotText: it is in no known encoding.
            KeyboardInterrupt: Ctrl-C was pressed instead.
        """
        try:
            line = input(PROMPT) if self._edits else self._read()
            line.encode()  # what a terminal could not decode stands as lone surrogates
            return line
        except UnicodeError:
            raise NotText(f"the line is not {sys.stdin.encoding}") from None
        except EOFError:
            self._leave_prompt()
            return None
        except KeyboardInterrupt:
            self._leave_prompt()
            raise

    def _read(self) -> str:
        if self.interactive:
            print(PROMPT, end="", file=sys.stderr, flush=True)
        line = b"" if sys.stdin is None else sys.stdin.buffer.readline()
        if not line:
            raise EOFError
        return line.decode(sys.stdin.encoding).removesuffix("\n").removesuffix("\r")

    def _leave_prompt(self) -> None:
        if self.interactive:
            print(file=sys.stderr)
