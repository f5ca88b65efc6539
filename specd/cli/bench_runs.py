"""What `specd bench` measures: the same prompts plainly and with drafters, in turn.

Knows the client and the order of runs; nothing of terminals. A *setting* is one drafter, the
daemon's default chain, or plain decoding. A *load* is a length of prompts and a number of streams.

Invariant: within a round every setting gets the same prompts, and no setting is always the first;
rounds and streams begin elsewhere in the text, so that no prompt repeats another's beginning.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from specd_client import Client

from specd.cli.timing import Run, measure, percentile, together_tokens_per_s

Progress = Callable[[int, int], None]  # runs done, runs in all

_TEXT = "bench_text.txt"
_STREAM_STRIDE = 211  # tokens between the beginnings of two streams' prompts; a prime
_WARM_TOKENS = 4


class CannotMeasure(Exception):
    """What was asked for does not fit this daemon; the message says why."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How drafts are made. name: as tables call it. options: of the request."""

    name: str
    options: dict[str, Any]

    @property
    def is_plain(self) -> bool:
        return self.options.get("speculation") is False


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run. drafters: None is the daemon's default chain, none at all plain alone."""

    prompt_tokens: tuple[int, ...]
    streams: tuple[int, ...]
    new_tokens: int
    rounds: int
    drafters: tuple[str, ...] | None
    max_draft_tokens: int | None
    temperature: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """What bounds a step of the daemon: bytes of weights, KV bytes per position, bytes/s read."""

    weight_bytes: int
    kv_bytes_per_position: int
    read_bytes_per_second: int

    def share(self, context: float, streams: int, steps_per_s: float) -> float:
        """Of the memory bandwidth that steps take, each of which reads all streams' contexts."""
        kv = self.kv_bytes_per_position * context * streams
        return steps_per_s * (self.weight_bytes + kv) / self.read_bytes_per_second


@dataclass(slots=True)
class Series:
    """All runs of one setting under one load: a list of streams per round."""

    prompt_tokens: int
    streams: int
    setting: Setting
    rounds: list[list[Run]] = field(default_factory=list)

    @property
    def all_runs(self) -> list[Run]:
        return list(itertools.chain.from_iterable(self.rounds))

    @property
    def totals(self) -> list[float]:
        """Tokens per second of all streams together, by round."""
        return [together_tokens_per_s([run.timing for run in runs]) for runs in self.rounds]

    @property
    def token_ids(self) -> list[tuple[int, ...]]:
        return [run.token_ids for run in self.all_runs]


def text() -> str:
    """The text that prompts are cut from: prose, talk, code and tables."""
    return files("specd.cli").joinpath(_TEXT).read_text(encoding="utf-8")


def window(ids: Sequence[int], length: int, *, round_number: int, stream: int) -> list[int]:
    """A prompt of `length` ids, from the text over and over."""
    start = round_number + stream * _STREAM_STRIDE
    return [ids[(start + place) % len(ids)] for place in range(length)]


def document(series: Series, plain: Series, roofline: Roofline | None) -> dict[str, Any]:
    """The figures of a series, beside those of plain decoding under the same load."""
    runs = series.all_runs
    timings = [run.timing for run in runs]
    first_s = statistics.median(timing.first_token_s for timing in timings)
    gaps_s = [gap for timing in timings for gap in timing.gaps_s]
    pairs = zip(series.totals, plain.totals, strict=True)
    drafting = _drafting(runs)
    decode = _median([timing.decode_tokens_per_s for timing in timings])
    share = None
    if roofline is not None and decode is not None:
        context = series.prompt_tokens + len(runs[0].token_ids) / 2
        share = roofline.share(context, series.streams, decode / drafting["tokens_per_step"])
    return {
        "prompt_tokens": series.prompt_tokens,
        "streams": series.streams,
        "drafter": None if series.setting.is_plain else series.setting.name,
        "first_token_ms": first_s * 1e3,
        "prefill_tokens_per_s": series.prompt_tokens / first_s,
        "decode_tokens_per_s": decode,
        "total_tokens_per_s": statistics.median(series.totals),
        "latency_ms": {"p50": _ms(percentile(gaps_s, 0.5)), "p99": _ms(percentile(gaps_s, 0.99))},
        "speedup": statistics.median(ours / theirs for ours, theirs in pairs),
        "same_tokens_as_plain": series.token_ids == plain.token_ids,
        "roofline_share": share,
    } | drafting


def _drafting(runs: Sequence[Run]) -> dict[str, Any]:
    drafted = sum(run.tally.draft_tokens for run in runs)
    accepted = sum(run.tally.accepted_draft_tokens for run in runs)
    steps = sum(run.tally.verify_steps for run in runs)
    return {
        "draft_tokens": drafted,
        "accepted_draft_tokens": accepted,
        "acceptance": accepted / drafted if drafted else None,
        "tokens_per_step": 1 + accepted / steps,
        "pad_positions": sum(run.tally.pad_positions for run in runs),
    }


def _median(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


async def measure_all(client: Client, plan: Plan, progress: Progress) -> list[Series]:
    """Run everything; series of one load stand together, plain first.

    Raises:
        CannotMeasure: the daemon has no such drafter, or prompts do not fit its context.
        CallFailed, ProtocolError: as the client raises them.
    """
    settings = await _settings(client, plan)
    ids = await _text_ids(client)
    loads = list(itertools.product(plan.prompt_tokens, plan.streams))
    series = [Series(*load, setting) for load in loads for setting in settings]
    for setting in settings:
        warm = window(ids, min(plan.prompt_tokens), round_number=0, stream=0)
        await measure(client, {"token_ids": warm}, **_options(plan, setting, _WARM_TOKENS, 0))
    order = [
        (round_number, one)
        for round_number in range(plan.rounds)
        for load in loads
        for one in _rotated(
            [one for one in series if (one.prompt_tokens, one.streams) == load], round_number
        )
    ]
    for done, (round_number, one) in enumerate(order):
        progress(done, len(order))
        one.rounds.append(await _together(client, plan, one, ids, round_number))
    progress(len(order), len(order))
    return series


async def _settings(client: Client, plan: Plan) -> list[Setting]:
    model = await client.model()
    longest = max(plan.prompt_tokens)
    if longest + plan.new_tokens > model.context_length:
        raise CannotMeasure(
            f"--prompt-tokens {longest} and --new-tokens {plan.new_tokens} are more than the "
            f"{model.context_length} positions of {model.name}"
        )
    if plan.drafters is None:
        chain = list(model.default_drafters)
        made = [Setting("+".join(chain), {"speculation": True})] if chain else []
    else:
        if unknown := [name for name in plan.drafters if name not in model.drafters]:
            raise CannotMeasure(
                f"the daemon has no drafter {unknown[0]!r}; it has "
                f"{', '.join(model.drafters) or 'none'}"
            )
        made = [Setting(name, {"drafters": [name]}) for name in plan.drafters]
    return [Setting("plain", {"speculation": False}), *made]


async def _text_ids(client: Client) -> list[int]:
    """Line by line: the whole text may be longer than the model's context."""
    found: list[int] = []
    for line in text().splitlines(keepends=True):
        found += await client.tokenize(text=line, add_special_tokens=False)
    return found


def _rotated(settings: list[Series], by: int) -> list[Series]:
    by %= len(settings)
    return settings[by:] + settings[:by]


async def _together(
    client: Client, plan: Plan, one: Series, ids: Sequence[int], round_number: int
) -> list[Run]:
    prompts = [
        window(ids, one.prompt_tokens, round_number=round_number, stream=stream)
        for stream in range(one.streams)
    ]
    runs = await asyncio.gather(
        *(
            measure(
                client,
                {"token_ids": prompt},
                **_options(plan, one.setting, plan.new_tokens, seed),
            )
            for seed, prompt in enumerate(prompts)
        )
    )
    for run in runs:
        if len(run.token_ids) != plan.new_tokens:
            raise CannotMeasure(
                f"an answer ended after {len(run.token_ids)} of {plan.new_tokens} tokens "
                f"({run.finish_reason}); it cannot be compared"
            )
    return list(runs)


def _options(plan: Plan, setting: Setting, num_tokens: int, seed: int) -> dict[str, Any]:
    return {
        "max_new_tokens": num_tokens,
        "temperature": plan.temperature,
        "seed": seed,
        "ignore_eos": True,
        "max_draft_tokens": None if setting.is_plain else plan.max_draft_tokens,
        **setting.options,
    }
