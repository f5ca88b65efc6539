"""`specd serve`: its flags, made from the settings, and what they come to.

Knows where each setting may come from. Imports no torch: `cli/serve.py` does, once the settings
stand.
"""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from specd.config import CONFIG_VARIABLE, ENV_PREFIX, ServeSettings, load, unknown_variables

USAGE_ERROR = 2
_LISTS = ("drafter", "listen")


def add_serve(commands: Any) -> None:
    """Add the command and its flags."""
    serve = commands.add_parser(
        "serve",
        help="run the daemon",
        argument_default=argparse.SUPPRESS,
        epilog=f"Each flag is also a variable {ENV_PREFIX}NAME and a key `name` of the file.",
    )
    serve.add_argument("--config", help=f"a TOML file of settings [{CONFIG_VARIABLE}]")
    serve.add_argument(
        "--print-config", action="store_true", help="print all settings as TOML and end"
    )
    for name, field in ServeSettings.model_fields.items():
        default = "" if field.default is PydanticUndefined else f" [{_shown(field.default)}]"
        serve.add_argument(
            f"--{name.replace('_', '-')}",
            help=f"{field.description}{default}",
            action="append" if name in _LISTS else "store",
            metavar=name.upper(),
        )
    serve.set_defaults(run=_serve)


def as_toml(settings: ServeSettings) -> str:
    """All settings as a file that `--config` takes; what is unset is left out."""
    return tomli_w.dumps(settings.model_dump(exclude_none=True))


def _shown(default: object) -> str:
    return ", ".join(default) if isinstance(default, tuple) else str(default)


def _serve(parsed: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(parsed).items() if name != "run"}
    config = given.pop("config", os.environ.get(CONFIG_VARIABLE)) or None
    printing = given.pop("print_config", False)
    if unknown := unknown_variables(dict(os.environ)):
        return _usage(f"unknown environment variables: {', '.join(unknown)}")
    try:
        settings = load(given, None if config is None else Path(config))
    except ValidationError as error:
        return _usage("; ".join(_problem(problem, config) for problem in error.errors()))
    except OSError as error:
        return _usage(f"cannot read {config}: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return _usage(f"{config} is not TOML: {error}")
    if printing:
        print(as_toml(settings), end="")
        return 0
    from specd.cli.serve import run  # torch takes a second to import

    return run(settings)


def _problem(problem: Any, config: str | None) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else "settings"
    if problem["type"] == "extra_forbidden":
        return f"{config}: there is no setting {name!r}"
    message = problem["msg"].removeprefix("Value error, ")
    places = f"{ENV_PREFIX}{name.upper()}" + (f", {name} in {config}" if config else "")
    return f"--{name.replace('_', '-')} (or {places}): {message}"


def _usage(message: str) -> int:
    print(f"specd: {message}", file=sys.stderr)
    return USAGE_ERROR
