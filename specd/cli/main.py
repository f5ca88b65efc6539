"""The command line: `specd serve | generate | models`.

Knows flags and where output goes: results to stdout, everything else to stderr, so that `--json`
output is one clean document. Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from specd import __version__
from specd.config import ENV_PREFIX, ServeSettings, unknown_variables

_USAGE_ERROR = 2
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
    _add_serve(commands)
    _add_generate(commands)
    _add_models(commands)
    return parser


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", help="run the daemon", argument_default=argparse.SUPPRESS)
    for name, field in ServeSettings.model_fields.items():
        default = "" if field.default is PydanticUndefined else f" [{_shown(field.default)}]"
        serve.add_argument(
            f"--{name.replace('_', '-')}",
            help=f"{field.description}{default}",
            action="append" if name == "drafter" else "store",
            metavar=name.upper(),
        )
    serve.set_defaults(run=_serve)


def _shown(default: object) -> str:
    return ", ".join(default) if isinstance(default, tuple) else str(default)


def _serve(parsed: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(parsed).items() if name != "run"}
    if unknown := unknown_variables(dict(os.environ)):
        return _usage(f"unknown environment variables: {', '.join(unknown)}")
    try:
        settings = ServeSettings(**given)
    except ValidationError as error:
        return _usage("; ".join(_problem(problem) for problem in error.errors()))
    from specd.cli.serve import run  # torch takes a second to import; other commands do without

    return run(settings)


def _problem(problem: Any) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else "settings"
    message = problem["msg"].removeprefix("Value error, ")
    return f"--{name.replace('_', '-')} (or {ENV_PREFIX}{name.upper()}): {message}"


def _usage(message: str) -> int:
    print(f"specd: {message}", file=sys.stderr)
    return _USAGE_ERROR


def _add_generate(commands: Any) -> None:
    generate = commands.add_parser("generate", help="stream an answer from a running daemon")
    generate.add_argument("text", type=_text, help="the prompt")
    generate.add_argument("--address", default="127.0.0.1:50051", help="HOST:PORT [%(default)s]")
    generate.add_argument("--chat", action="store_true", help="send the text as a chat message")
    generate.add_argument("--system", type=_text, help="a system message, with --chat")
    generate.add_argument("--json", action="store_true", help="end with one JSON line")
    generate.add_argument("--no-speculation", action="store_true", help="plain decoding")
    generate.add_argument(
        "--drafter", type=_text, action="append", help="a drafter of the daemon; repeatable"
    )
    for flag, kind in (
        ("--max-new-tokens", _uint32), ("--temperature", float), ("--top-k", _uint32),
        ("--top-p", float), ("--min-p", float), ("--seed", _uint64),
        ("--max-draft-tokens", _uint32), ("--timeout", float),
    ):  # fmt: skip
        generate.add_argument(flag, type=kind)
    generate.add_argument("--stop", type=_text, action="append", help="a stop string; repeatable")
    generate.add_argument("--ignore-eos", action="store_true", help="go on past the end token")
    generate.set_defaults(run=_generate)


def _text(value: str) -> str:
    """What the wire can carry: an argument that is no UTF-8 holds lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("is not UTF-8") from None
    return value


def _uint32(value: str) -> int:
    return _uint(value, 32)


def _uint64(value: str) -> int:
    return _uint(value, 64)


def _uint(value: str, bits: int) -> int:
    """A whole number that a wire field of so many bits holds."""
    if not (value.isdecimal() and int(value) < 1 << bits):
        raise argparse.ArgumentTypeError(f"{value!r} is no whole number from 0 to 2^{bits} - 1")
    return int(value)


def _generate(parsed: argparse.Namespace) -> int:
    if parsed.system is not None and not parsed.chat:
        return _usage("--system goes with --chat")
    from specd.cli.generate import run

    return run(parsed)


def _add_models(commands: Any) -> None:
    models = commands.add_parser("models", help="the models that specd knows by name")
    actions = models.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="what there is, and what is on this machine")
    listing.set_defaults(run=_models_list)
    pulling = actions.add_parser("pull", help="fetch one")
    pulling.add_argument("name")
    pulling.set_defaults(run=_models_pull)
    for action in (listing, pulling):
        action.add_argument("--json", action="store_true", help="one JSON document")


def _models_list(parsed: argparse.Namespace) -> int:
    from specd.cli.models import list_models

    return list_models(parsed.json)


def _models_pull(parsed: argparse.Namespace) -> int:
    from specd.cli.models import pull_model

    return pull_model(parsed.name, parsed.json)


if __name__ == "__main__":
    sys.exit(main())
