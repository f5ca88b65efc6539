"""What strict invariance costs: steps of one model under both modes, in turn, on the same weights.

    python -m benchmarks.invariance [--model smollm2-135m ...] [--kernels auto torch]

A model is loaded once; its relaxed twin shares every tensor, so that where memory lies favours
neither. Loads: plain decoding of one stream behind a short and a long prompt, the same with drafts
of 7 tokens, eight streams together, and a prompt. Every step is computed by each mode in turn, and
who is first changes from step to step. A step's time is its median over the rounds; the ratio is
strict's speed over relaxed's, so 0.97 says that strict costs 3%. `--by-rule` adds strict with one
of its two rules switched off, which tells what costs. The last line is one JSON document.

The C++ core has no modes: `--invariance` reaches nothing in it, and what is measured there is
twice the same code, so its ratios tell the noise of the machine. Exit status: 0 measured, 1 not.
See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.prompts import Prompts, text_ids
from specd.cli.doctor_machine import processor_name
from specd.device.assembly import DeviceSettings
from specd.device.boot import boot
from specd.device.eager import EagerRunner
from specd.device.runner import Runner
from specd.engine.padding import pad
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, CleanDraft, PaddedBatch, PlannedRow
from specd.errors import StartFailed
from specd.kv.pages import RESERVED_PAGES, pages_for
from specd.model.catalog import resolve
from specd.model.decoder import Decoder
from specd.model.formats import Kernels, WeightFormat
from specd.model.linear import Bf16Linear, Fp32Linear, Linear, SplitLinear
from specd.model.weights import ModelWeights

CHUNK = 256  # positions of a prompt in a step, as `--max-step-tokens`
SHORT, LONG = 32, 512
DRAFT = 7
STREAMS = 8
_STAGGER = 17  # positions between two streams, so that they end pages at different steps
_KV_MEMORY = 1 << 31
_GREEDY = Choosing(SamplingParams(temperature=0))


@dataclass(frozen=True, slots=True)
class Load:
    """Steps of some rows. starts: each row's first position. count: positions of a row and step,
    the later ones as a draft, or as known tokens of a prompt."""

    name: str
    starts: tuple[int, ...]
    count: int
    num_steps: int
    is_prompt: bool = False

    @property
    def last(self) -> int:
        """Positions that its longest row has in the end."""
        moved = self.num_steps * self.count if self.is_prompt else self.num_steps + self.count
        return max(self.starts) + moved

    @property
    def tokens(self) -> int:
        """What the speed counts: new tokens, with drafts the positions that are verified."""
        return len(self.starts) * self.count * self.num_steps


def loads(num_tokens: int, context_length: int) -> list[Load]:
    """All that fit the context."""
    streams = tuple(SHORT + _STAGGER * place for place in range(STREAMS))
    everything = [
        Load(f"one stream behind {SHORT}", (SHORT,), 1, num_tokens),
        Load(f"one stream behind {LONG}", (LONG,), 1, num_tokens),
        Load(f"drafts of {DRAFT} behind {SHORT}", (SHORT,), 1 + DRAFT, num_tokens),
        Load(f"{STREAMS} streams", streams, 1, num_tokens),
        Load(f"a prompt of {LONG}", (0,), CHUNK, LONG // CHUNK, is_prompt=True),
    ]
    return [load for load in everything if load.last <= context_length]


@dataclass(slots=True)
class Times:
    """Seconds of each step, by mode: a list per round."""

    load: Load
    rounds: dict[str, list[list[float]]] = field(default_factory=dict)

    def total_s(self, mode: str) -> float:
        """All steps, each at its median over the rounds."""
        steps = zip(*self.rounds[mode], strict=True)
        return float(sum(statistics.median(step) for step in steps))

    def ratios(self, mode: str, reference: str) -> list[float]:
        """Speed of a mode over that of the reference, by round."""
        pairs = zip(self.rounds[mode], self.rounds[reference], strict=True)
        return [float(sum(theirs) / sum(ours)) for ours, theirs in pairs]


class Bench:
    """The runners of one model, each with its own KV cache."""

    def __init__(self, runners: Mapping[str, Runner], prompts: Prompts) -> None:
        self._runners = runners
        self._prompts = prompts

    def measure(self, load: Load, times: Times, round_number: int) -> None:
        """One round: every step in every mode."""
        texts = self._prompts.of(load.last, len(load.starts), round_number)
        for runner in self._runners.values():
            self._fill(runner, load, texts)
        names = list(self._runners)
        found: dict[str, list[float]] = {name: [] for name in names}
        for step in range(load.num_steps):
            names.append(names.pop(0))
            for name in names:
                runner = self._runners[name]
                batch = self._batch(runner, load, texts, step)
                start_s = time.perf_counter()
                runner.step(batch)
                found[name].append(time.perf_counter() - start_s)
        for name, steps in found.items():
            times.rounds.setdefault(name, []).append(steps)

    def _fill(self, runner: Runner, load: Load, texts: Sequence[Sequence[int]]) -> None:
        for place, start in enumerate(load.starts):
            for first in range(0, start, CHUNK):
                ids = texts[place][first : min(first + CHUNK, start)]
                row = _row(place, ids, first)
                runner.step(pad([row], [CleanDraft()], [_pages(load, place)], runner.layout))

    def _batch(
        self, runner: Runner, load: Load, texts: Sequence[Sequence[int]], step: int
    ) -> PaddedBatch:
        rows, drafts = [], []
        for place, start in enumerate(load.starts):
            first = start + step * (load.count if load.is_prompt else 1)
            ids = texts[place][first : first + load.count]
            known = len(ids) if load.is_prompt else 1
            rows.append(_row(place, ids[:known], first))
            drafts.append(CleanDraft(tuple(ids[known:])))
        pages = [_pages(load, place) for place in range(len(rows))]
        return pad(rows, drafts, pages, runner.layout)


def _row(place: int, ids: Sequence[int], first: int) -> PlannedRow:
    return PlannedRow(f"{place}", place, tuple(ids), first, True, _GREEDY)


def _pages(load: Load, place: int) -> range:
    each = pages_for(load.last)
    return range(RESERVED_PAGES + place * each, RESERVED_PAGES + (place + 1) * each)


def modes(strict: Runner, *, by_rule: bool) -> dict[str, Runner]:
    """The runner and its twins on the same tensors, by name."""
    if not isinstance(strict, EagerRunner):
        return {"strict": strict, "relaxed": strict}
    weights = strict.decoder.weights
    found: dict[str, Runner] = {
        "strict": strict,
        "relaxed": _twin(strict, relaxed(weights), strict_attention=False),
    }
    if by_rule:
        found["strict but for linear layers"] = _twin(
            strict, relaxed(weights), strict_attention=True
        )
        found["strict but for attention"] = _twin(strict, weights, strict_attention=False)
    return found


def _twin(runner: EagerRunner, weights: ModelWeights, *, strict_attention: bool) -> EagerRunner:
    return EagerRunner(
        Decoder(runner.config, weights),
        num_pages=runner.num_pages,
        layout=runner.layout,
        strict=strict_attention,
    )


def relaxed(weights: ModelWeights) -> ModelWeights:
    """The same tensors in layers that take any number of positions as it comes."""
    layers = tuple(
        replace(
            layer,
            qkv=_relaxed(layer.qkv),
            attn_output=_relaxed(layer.attn_output),
            gate_up=_relaxed(layer.gate_up),
            ffn_down=_relaxed(layer.ffn_down),
        )
        for layer in weights.layers
    )
    return replace(weights, layers=layers, head=_relaxed(weights.head))


def _relaxed(linear: Linear) -> Linear:
    if isinstance(linear, SplitLinear):
        return SplitLinear([_relaxed(part) for part in linear.parts])
    if isinstance(linear, Fp32Linear | Bf16Linear):
        return type(linear)(linear.weight(), strict=False)
    return linear  # int4 has one form


def _results(
    chosen: argparse.Namespace, model: str, kernels: Kernels, notes: Console
) -> list[dict[str, Any]]:
    """Measure one model with one kind of kernels. Raises StartFailed."""
    path = resolve(model)
    booted = boot(
        DeviceSettings(
            model_path=path,
            weights=chosen.weights,
            invariance="strict",
            kernels=kernels,
            kv_memory=_KV_MEMORY,
            max_rows=STREAMS,
            max_positions=CHUNK,
            num_threads=chosen.threads,
        )
    )
    runners = modes(booted.runner, by_rule=chosen.by_rule)
    bench = Bench(runners, Prompts(text_ids(path)))
    everything = [Times(load) for load in loads(chosen.tokens, booted.config.context_length)]
    for number in range(chosen.rounds):
        for times in everything:
            doing = f"{model}, {booted.runner.kernels}, round {number + 1}: {times.load.name}"
            notes.print(doing, style="dim", highlight=False)
            bench.measure(times.load, times, number)
    names = {"model": model, "kernels": booted.runner.kernels, "promised": booted.invariance}
    return [names | _document(times) for times in everything]


def _document(times: Times) -> dict[str, Any]:
    total_s = {mode: times.total_s(mode) for mode in times.rounds}
    return {
        "load": times.load.name,
        "tokens_per_s": {mode: times.load.tokens / one for mode, one in total_s.items()},
        # Above 1 this mode is faster than relaxed.
        "ratio_to_relaxed": {mode: total_s["relaxed"] / one for mode, one in total_s.items()},
        "strict_ratio_by_round": times.ratios("strict", "relaxed"),
    }


def _table(results: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="tokens/s, and strict's speed over relaxed's", box=None)
    for title in ("model", "kernels", "load"):
        table.add_column(title, no_wrap=True)
    both = ("strict", "relaxed")
    named = dict.fromkeys(mode for one in results for mode in one["tokens_per_s"])
    others = [mode for mode in named if mode not in both]
    for title in (*both, "ratio", "by round", *others):
        table.add_column(title, justify="right")
    last = None
    for one in results:
        who = one["model"], one["kernels"]
        speeds, ratios = one["tokens_per_s"], one["ratio_to_relaxed"]
        by_round = one["strict_ratio_by_round"]
        table.add_row(
            *(who if who != last else ("", "")),
            one["load"],
            f"{speeds['strict']:.1f}",
            f"{speeds['relaxed']:.1f}",
            f"{ratios['strict']:.3f}",
            f"{min(by_round):.2f} to {max(by_round):.2f}",
            *(f"{ratios[mode]:.3f}" if mode in ratios else "" for mode in others),
        )
        last = who
    return table


def run(chosen: argparse.Namespace) -> int:
    """Measure everything and report; returns the exit status. Raises StartFailed."""
    torch.inference_mode().__enter__()  # for the whole process, as on the daemon's device thread
    load_before = os.getloadavg()[0]
    notes, console = Console(stderr=True), report.console()
    results = []
    for model in chosen.model:
        for kernels in chosen.kernels:
            results += _results(chosen, model, kernels, notes)
    console.print(_table(results))
    report.show(report.load_lines(load_before), console)
    document = {
        "benchmark": "invariance",
        "settings": vars(chosen),
        "machine": {
            "cores": os.cpu_count(), "cpu": processor_name(), "torch": torch.__version__,
            "load_before": load_before,
        },
        "results": results,
    }  # fmt: skip
    print(json.dumps(document, allow_nan=False))
    return 0


def main() -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", default=["smollm2-135m"], help="names or paths")
    parser.add_argument(
        "--kernels", nargs="+", choices=get_args(Kernels), default=["auto", "torch"]
    )
    parser.add_argument("--weights", choices=get_args(WeightFormat), default="auto")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tokens", type=int, default=128, help="steps of a load [%(default)s]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--by-rule", action="store_true", help="which of the two rules costs what")
    chosen = parser.parse_args()
    if min(chosen.tokens, chosen.rounds) < 1:
        parser.error("--tokens and --rounds take at least 1")
    try:
        return run(chosen)
    except StartFailed as error:
        print(f"invariance: {error}", file=sys.stderr)
        print(json.dumps({"benchmark": "invariance", "error": str(error)}))
        return 1


if __name__ == "__main__":
    sys.exit(main())
