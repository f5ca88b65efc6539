"""Flags of `specd doctor`.

Knows argparse; imports nothing that takes time, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, get_args

from specd.cli.flag_types import uint64
from specd.cli.model_flags import threads
from specd.model.catalog import DEFAULT_MODEL
from specd.model.formats import Invariance, Kernels, WeightFormat

_MAX_MINUTES = 1e5
# What a check alone can use, and what it is where the flag is not given.
_OF_A_CHECK: dict[str, Any] = {
    "model": DEFAULT_MODEL,
    "weights": "auto",
    "kernels": "auto",
    "threads": 0,
    "drafter": ["ngram"],
    "minutes": 0.0,
    "seed": 0,
}


def add_doctor(commands: Any) -> None:
    """Add the command and its flags."""
    doctor = commands.add_parser(
        "doctor",
        help="what this machine has, and whether it keeps the guarantee",
        description="Without a flag: what specd finds on this machine. With --invariance: check "
        "with a model of yours that neither drafts nor neighbours change a token or a bit.",
    )
    doctor.add_argument(
        "--invariance",
        nargs="?",
        const="strict",
        choices=get_args(Invariance),
        help="compare the model's operations, whole rows of logits and whole answers to the bit, "
        "computed alone and in every company; exit status 1 where anything differs. relaxed: see "
        "how that mode fares [strict]",
    )
    check = doctor.add_argument_group("with --invariance")
    _add(check, "model", metavar="NAME|PATH", help="a name, a GGUF file or a model folder")
    _add(check, "weights", choices=get_args(WeightFormat), help="as of `specd serve`")
    _add(check, "kernels", choices=get_args(Kernels), help="as of `specd serve`")
    _add(check, "threads", type=threads, help="that compute a step; 0 is one for each core")
    _add(
        check,
        "drafter",
        action="append",
        metavar="NAME",
        help="compare with its drafts too: ngram or module:object; repeatable",
    )
    _add(
        check,
        "minutes",
        type=_minutes,
        metavar="M",
        help="go on with other random choices until so much time is over; one round at least",
    )
    _add(check, "seed", type=uint64, metavar="N", help="of the random choices")
    doctor.add_argument("--json", action="store_true", help="end with one JSON document")
    doctor.set_defaults(run=partial(_doctor, doctor))


def _add(group: Any, name: str, *, help: str, **options: Any) -> None:
    default = _OF_A_CHECK[name]
    shown = (
        default[0]
        if isinstance(default, list)
        else f"{default:g}"
        if name == "minutes"
        else default
    )
    group.add_argument(f"--{name}", help=f"{help} [{shown}]", **options)


def _minutes(value: str) -> float:
    try:
        minutes = float(value)
    except ValueError:
        minutes = -1.0
    if not 0 <= minutes <= _MAX_MINUTES:
        raise argparse.ArgumentTypeError(f"{value!r} is no number from 0 to {_MAX_MINUTES:g}")
    return minutes


def _doctor(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
    for name, default in _OF_A_CHECK.items():
        if getattr(parsed, name) is None:
            setattr(parsed, name, default)
        elif parsed.invariance is None:
            parser.error(f"--{name} goes with --invariance")
    if parsed.invariance is None:
        from specd.cli.doctor_machine import run as show_machine

        return show_machine(parsed)
    from specd.cli.doctor import run  # torch takes a second to import

    return run(parsed)
