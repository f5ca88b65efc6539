"""The command line: `specd serve | generate | chat | bench | models | inspect | doctor | drain`.

Knows flags and where output goes: results to stdout, everything else to stderr, so that `--json`
output is one clean document. Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from specd import __version__
from specd.cli.bench_flags import add_bench
from specd.cli.doctor_flags import add_doctor
from specd.cli.drain import add_drain
from specd.cli.model_flags import add_inspect, add_models
from specd.cli.request_flags import add_chat, add_generate
from specd.cli.serve_flags import USAGE_ERROR, add_serve
from specd.config import unknown_variables

_FAILED = 1
_INTERRUPTED = 130
# Of a write to a descriptor; an error about a file names the file.
_OUTPUT_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    # gRPC writes lines of its own to stderr; it reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # whoever read our output has had enough
        _drop_output()
        return _FAILED
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_FAULTS:
            raise
        _drop_output()
        print(f"specd: cannot write the output: {error.strerror}", file=sys.stderr)
        return _FAILED


def _run(arguments: Sequence[str] | None) -> int:
    parsed = _parser().parse_args(arguments)
    if unknown := unknown_variables(os.environ):
        print(f"specd: unknown environment variables: {', '.join(unknown)}", file=sys.stderr)
        return USAGE_ERROR
    status: int = parsed.run(parsed)
    return status


class _ClosedOutput(io.TextIOBase):
    """Where Python itself has no stdout, and would lose what is printed without a word."""

    _lost = False

    def write(self, text: str) -> int:
        self._lost = True
        return len(text)

    def flush(self) -> None:
        if self._lost:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _drop_output() -> None:
    """Python writes what is left at its end, and would fail again."""
    if isinstance(sys.stdout, _ClosedOutput):
        sys.stdout = open(os.devnull, "w")
    else:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Takes flags by their whole names only, and tells of an unknown one with its own usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "allow_abbrev": False})

    def parse_known_args(  # type: ignore[override]  # always with an answer of its own kind
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """All or nothing. Exits with status 2 if anything is left."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found, left

    def _print_message(self, message: str, file: Any = None) -> None:
        """argparse itself passes over a failed write of its help."""
        if file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="specd", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"specd {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_serve(commands)
    add_generate(commands)
    add_chat(commands)
    add_bench(commands)
    add_models(commands)
    add_inspect(commands)
    add_doctor(commands)
    add_drain(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
