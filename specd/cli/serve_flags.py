"""`specd serve`: its flags, made from the settings, and what they come to.

Knows where each setting may come from. Imports no torch: `cli/serve.py` does, once the settings
stand.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import tomli_w
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from specd.config import CONFIG_VARIABLE, ENV_PREFIX, ServeSettings, load

USAGE_ERROR = 2
_MAX_SHOWN = 60
_LISTS = ("drafter", "listen")
_METAVARS = {"listen": "ADDRESS", "admin_listen": "ADDRESS", "kv_memory": "BYTES"}
_KINDS = ((int, "N"), (float, "N"), (bool, "true|false"))
# What pydantic calls a fault, and what we do; a limit is put in.
_FAULTS = {
    "int": "takes a whole number",
    "float": "takes a number",
    "finite_number": "takes a number",
    "bool": "takes true or false",
    "string": "takes a text",
    "literal_error": "takes {expected}",
    "greater_than_equal": "takes a number from {ge}",
    "greater_than": "takes a number above {gt}",
    "less_than_equal": "takes a number up to {le}",
}


def add_serve(commands: Any) -> None:
    """Add the command and its flags."""
    serve = commands.add_parser(
        "serve",
        help="run the daemon",
        argument_default=argparse.SUPPRESS,
        epilog=f"Each flag is also a variable {ENV_PREFIX}NAME and a key `name` of the file.",
    )
    serve.add_argument(
        "--config", metavar="FILE", help=f"a TOML file of settings; also from {CONFIG_VARIABLE}"
    )
    serve.add_argument(
        "--print-config", action="store_true", help="print all settings as TOML and end"
    )
    for name, field in ServeSettings.model_fields.items():
        alone: dict[str, Any] = {"nargs": "?", "const": "true"} if field.annotation is bool else {}
        serve.add_argument(
            f"--{name.replace('_', '-')}",
            help=f"{field.description}{_default(field)}",
            action="append" if name in _LISTS else "store",
            metavar=_metavar(name, field),
            **alone,
        )
    serve.set_defaults(run=_serve)


def as_toml(settings: ServeSettings) -> str:
    """All settings as a file that `--config` takes; what is unset is left out."""
    return tomli_w.dumps(settings.model_dump(exclude_none=True))


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return " [a quarter of the free memory]"
    if field.default is None:
        return ""
    default = field.default
    if isinstance(default, bool):
        default = str(default).lower()
    return f" [{', '.join(default) if isinstance(default, tuple) else default}]"


def _metavar(name: str, field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return "|".join(get_args(field.annotation))
    kind = next((shown for kind, shown in _KINDS if field.annotation is kind), "FILE")
    return _METAVARS.get(name) or (name.upper() if name in {"model", "drafter"} else kind)


def _serve(parsed: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(parsed).items() if name != "run"}
    config = given.pop("config", os.environ.get(CONFIG_VARIABLE)) or None
    printing = given.pop("print_config", False)
    try:
        settings = load(given, None if config is None else Path(config))
    except ValidationError as error:
        return _usage("; ".join(_problem(problem, config) for problem in error.errors()))
    except OSError as error:
        return _usage(f"cannot read {config}: {error.strerror}")
    except (ValueError, RecursionError) as error:
        return _usage(f"{config} is not TOML: {error}")
    if printing:
        print(as_toml(settings), end="")
        return 0
    from specd.cli.serve import run  # torch takes a second to import

    return run(settings)


def _problem(problem: Any, config: str | None) -> str:
    message = _message(problem)
    if not problem["loc"]:  # of settings that do not go together; it names them
        return message
    name = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        return f"{config}: there is no setting {name!r}"
    places = f"{ENV_PREFIX}{name.upper()}" + (f", {name} in {config}" if config else "")
    return f"--{name.replace('_', '-')} (or {places}): {message}"


def _message(problem: Any) -> str:
    kind = problem["type"]
    words = _FAULTS.get(kind) or _FAULTS.get(kind.partition("_")[0])
    if words is None:
        return str(problem["msg"]).removeprefix("Value error, ")
    return words.format(**problem.get("ctx", {})) + f", not {_short(problem['input'])}"


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."


def _usage(message: str) -> int:
    print(f"specd: {message}", file=sys.stderr)
    return USAGE_ERROR
