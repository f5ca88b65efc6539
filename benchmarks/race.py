"""What `benchmarks/decode` and `benchmarks/serve` share: the flags, the contest, the report.

Knows the order: a daemon, the contest, what is measured behind it, the tables, the plot, the JSON
line. Exit status: 0 all who are here ran to the end, 1 somebody failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import report, roofline
from benchmarks.contenders import add_peer_flags, contenders, field_of, reference
from benchmarks.contest import Course, Entry, Figures, compete, figures, is_unfinished
from benchmarks.peers.contract import PeerAbsent, PeerFailed
from benchmarks.peers.worker import Worker, worker
from benchmarks.prompts import Prompts, text_ids
from specd.cli.child import Child, DaemonFailed, running_daemon
from specd.cli.doctor_machine import processor_name
from specd.errors import StartFailed
from specd.model.arch import config_from_gguf
from specd.model.catalog import resolve
from specd.model.opening import open_model

# Measured behind the contest, while its daemon is still up: adds to the document.
Extra = Callable[["Race", Worker, Child, dict[str, Any]], None]


class Race:
    """One benchmark: what was asked for, and what it is run on."""

    def __init__(self, name: str, chosen: argparse.Namespace) -> None:
        """Raises StartFailed for a model that cannot be used."""
        self.name = name
        self.chosen = chosen
        self.load_before = os.getloadavg()[0]
        self.model = resolve(chosen.model)
        self.course = Course(tuple(chosen.prompts), chosen.streams, chosen.tokens, chosen.rounds)
        self.prompts = Prompts(text_ids(self.model))
        self.context_length = config_from_gguf(open_model(self.model).metadata).context_length
        longest = max(self.course.prompt_tokens) + self.course.new_tokens
        if longest > self.context_length:
            raise StartFailed(
                f"prompts and answers of {longest} tokens are more than the "
                f"{self.context_length} positions of the model"
            )
        self.field = field_of(chosen, self.model, self.course.streams, longest)

    def run(self, extra: Extra | None = None) -> int:
        """Measure and report; returns the exit status."""
        notes = Console(stderr=True)
        with running_daemon(*self._daemon_flags()) as child:
            entries = compete(
                contenders(self.chosen, self.field, child),
                self.course,
                self.prompts,
                lambda message: notes.print(message, style="dim", highlight=False),
            )
            document = self._document(entries)
            found = figures(entries, reference)
            document["results"] = [one.document() for one in found]
            if is_unfinished(entries, self.course):
                document["problem"] = "interrupted"
            else:
                self._measure_beside(extra, child, document)
        self._report(entries, found, document)
        failed = [entry for entry in entries if entry.state == "failed"]
        return 1 if failed or document["problem"] or not found else 0

    def _measure_beside(self, extra: Extra | None, child: Child, document: dict[str, Any]) -> None:
        try:
            with self.runner() as runner:
                document["roofline"] = self._roofline(runner)
                if extra is not None:
                    extra(self, runner, child, document)
        except (PeerAbsent, PeerFailed) as error:
            document["problem"] = str(error)

    def runner(self) -> AbstractContextManager[Worker]:
        """specd's runner alone, as a worker."""
        module = "benchmarks.peers.specd_runner"
        return worker(sys.executable, module, *self._specd_flags())

    def _daemon_flags(self) -> list[str]:
        drafting = ("--drafter", self.chosen.drafter)
        return [*self._specd_flags(), *drafting, "--log-level", "WARNING"]

    def _specd_flags(self) -> list[str]:
        """What the daemon and the runner alone have in common."""
        chosen = self.chosen
        flags = ["--model", str(self.model), "--weights", chosen.weights]
        return [*flags, "--kernels", chosen.kernels, "--threads", str(chosen.threads)]

    def _roofline(self, runner: Worker) -> dict[str, Any]:
        told = runner.ask("roofline")
        packed = roofline.file_bytes(self.model)
        lengths = self.course.prompt_tokens
        return roofline.document(told, packed, lengths, self.course.new_tokens)

    def _document(self, entries: list[Entry]) -> dict[str, Any]:
        return {
            "benchmark": self.name,
            "settings": vars(self.chosen),
            "machine": {
                "cores": os.cpu_count(),
                "cpu": processor_name(),
                "python": platform.python_version(),
                "load_before": self.load_before,
            },
            "contenders": report.roll(entries),
            "results": [],
            "roofline": None,
            "problem": None,
        }

    def _report(self, entries: list[Entry], found: list[Figures], document: dict[str, Any]) -> None:
        console = report.console()
        bounds = _bounds(document)
        if found:
            console.print(report.figures_table(found, bounds))
        if document["roofline"]:
            report.show([report.bound_line(document["roofline"])], console)
        if costs := document.get("step_costs"):
            console.print(report.cost_table(costs))
        if path := document.get("path"):
            report.show(report.overhead_lines(path), console)
        report.show(report.roll_lines(entries), console)
        report.show(report.load_lines(self.load_before), console)
        if document["problem"]:
            report.show([f"not measured: {document['problem']}"], console)
        if self.chosen.plot and found:
            from benchmarks.plot import draw  # matplotlib is an extra

            draw(found, bounds, Path(self.chosen.plot), title=self._title())
        print(json.dumps(document, allow_nan=False))

    def _title(self) -> str:
        streams = "one stream" if self.course.streams == 1 else f"{self.course.streams} streams"
        return f"{self.model.name}, weights {self.chosen.weights}, {streams}, {processor_name()}"


def _bounds(document: dict[str, Any]) -> dict[int, float]:
    """Tokens/s of one plain stream, by prompt length, as the file packs its weights."""
    found = document["roofline"]
    if found is None or document["settings"]["streams"] > 1:
        return {}
    return {one["prompt_tokens"]: one["file_tokens_per_s"] for one in found["bounds"]}


def parser_of(description: str | None, *, streams: int) -> argparse.ArgumentParser:
    """The flags that both benchmarks have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_peer_flags(parser)
    parser.add_argument("--prompts", type=_count, nargs="+", default=[32, 512, 2048], metavar="N")
    parser.add_argument("--streams", type=_count, default=streams)
    parser.add_argument("--tokens", type=_tokens, default=128, help="of an answer [%(default)s]")
    parser.add_argument("--rounds", type=_count, default=3)
    parser.add_argument("--plot", metavar="FILE.png", help="needs the extra `bench`")
    return parser


def main(name: str, parser: argparse.ArgumentParser, extra: Extra | None = None) -> int:
    """Run one of the benchmarks; returns the exit status."""
    chosen = parser.parse_args()
    if chosen.plot and not _has_matplotlib():
        parser.error("--plot needs matplotlib: pip install -e '.[bench]'")
    # Servers of peers must not outlive this process.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return Race(name, chosen).run(extra)
    except (StartFailed, DaemonFailed) as error:
        print(f"{name}: {error}", file=sys.stderr)
        print(json.dumps({"benchmark": name, "error": str(error)}))
        return 1


def _has_matplotlib() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def _count(value: str) -> int:
    if not (value.isdecimal() and 0 < int(value) <= 1 << 20):
        raise argparse.ArgumentTypeError(f"{value!r} is no whole number from 1 to 2^20")
    return int(value)


def _tokens(value: str) -> int:
    if _count(value) < 2:
        raise argparse.ArgumentTypeError("there is no decoding with fewer than 2 tokens")
    return int(value)
