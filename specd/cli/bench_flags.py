"""Flags of `specd bench`.

Knows argparse; imports no client, so that `--help` is quick. Leaves to the daemon what it takes:
drafters, contexts, temperatures.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, get_args

from specd.cli.request_flags import add_address, check_tls
from specd.model.formats import Kernels, WeightFormat

PLAIN = "none"  # as `specd serve --drafter` calls it
OWN_FLAGS = ("weights", "kernels", "threads")  # of a daemon that is started here
_MAX_STREAMS = 1024
_MAX_TOKENS = 1 << 20
_MAX_ROUNDS = 1000
_MAX_DRAFT_TOKENS = 1 << 16


def add_bench(commands: Any) -> None:
    """Add the command and its flags."""
    bench = commands.add_parser(
        "bench",
        help="measure a running daemon, or one of its own",
        description="Streams answers to prompts of given lengths, plainly and with drafters in "
        "turn, and tells medians: time to the first token, tokens per second, latencies, what "
        "drafts brought. Answers go on past the end token.",
        epilog="A daemon of its own takes all other settings from the environment, as "
        "SPECD_NAME (see `specd serve --help`).",
    )
    whom = bench.add_mutually_exclusive_group()
    whom.add_argument("--model", help="start a daemon with this model and stop it afterwards")
    add_address(bench, whom)
    bench.add_argument("--weights", choices=get_args(WeightFormat), help="with --model")
    bench.add_argument("--kernels", choices=get_args(Kernels), help="with --model")
    bench.add_argument("--threads", type=_upto(512, least=0), metavar="N", help="with --model")
    _add_load(bench)
    bench.add_argument("--json", action="store_true", help="end with one JSON line")
    bench.set_defaults(run=partial(_bench, bench), timeout=None)


def _add_load(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "--prompt-tokens",
        type=_upto(_MAX_TOKENS),
        nargs="+",
        default=[32, 512],
        metavar="N",
        help="lengths of the prompts [32 512]",
    )
    bench.add_argument(
        "--streams",
        type=_upto(_MAX_STREAMS),
        nargs="+",
        default=[1],
        metavar="N",
        help="how many at once [1]",
    )
    bench.add_argument(
        "--new-tokens",
        type=_upto(_MAX_TOKENS, least=2),
        default=128,
        metavar="N",
        help="of each answer [%(default)s]",
    )
    bench.add_argument(
        "--rounds",
        type=_upto(_MAX_ROUNDS),
        default=3,
        metavar="N",
        help="how often everything runs [%(default)s]",
    )
    bench.add_argument(
        "--drafter",
        action="append",
        metavar="NAME",
        help="compare plain decoding with this drafter; repeatable, each is measured alone "
        f"[the daemon's default chain]; {PLAIN}: plain decoding only",
    )
    bench.add_argument(
        "--max-draft-tokens",
        type=_upto(_MAX_DRAFT_TOKENS),
        metavar="N",
        help="draft tokens in a step at most",
    )
    bench.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="[%(default)s, the likeliest token]",
    )


def _upto(most: int, *, least: int = 1) -> Any:
    """A type of whole numbers."""

    def number(value: str) -> int:
        if not (value.isdecimal() and least <= int(value) <= most):
            raise argparse.ArgumentTypeError(f"{value!r} is no whole number from {least} to {most}")
        return int(value)

    return number


def _bench(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
    if parsed.model is None:
        for name in OWN_FLAGS:
            if getattr(parsed, name) is not None:
                parser.error(f"--{name} goes with --model: a running daemon has its own")
    elif parsed.tls or parsed.tls_ca or parsed.tls_certificate or parsed.tls_key:
        parser.error("the TLS flags go with --address: a daemon of its own has no TLS")
    if parsed.drafter is not None and PLAIN in parsed.drafter and len(parsed.drafter) > 1:
        parser.error(f"--drafter {PLAIN} does not go together with other drafters")
    check_tls(parser, parsed, parsed.address)
    from specd.cli.bench import run  # grpc takes a moment to import; `--help` does without

    return run(parsed)
