"""The command line: `specd serve | generate | chat | models | inspect | drain`.

Knows flags and where output goes: results to stdout, everything else to stderr, so that `--json`
output is one clean document. Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from specd import __version__
from specd.cli.drain import add_drain
from specd.cli.model_flags import add_inspect, add_models
from specd.cli.request_flags import add_chat, add_generate
from specd.cli.serve_flags import add_serve

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
        return status
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specd", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"specd {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_serve(commands)
    add_generate(commands)
    add_chat(commands)
    add_models(commands)
    add_inspect(commands)
    add_drain(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
