"""How a benchmark looks: tables for people, one JSON document for scripts.

Knows titles and units; computes nothing. Invariant: absent and failed contenders are listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.contest import Entry, Figures

_SPINNING = 0.05
_BUSY = 0.5  # processes that ran on average over the last minute
COLUMNS = 140


def console() -> Console:
    """Of stdout, wide enough for the tables where it is no terminal."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=COLUMNS)


def figures_table(found: Sequence[Figures], bounds: dict[int, float]) -> Table:
    """A line per prompt length and contender. bounds: tokens/s of plain decoding, by length."""
    table = Table(
        title="medians; p50, p99: between arrivals; ×: specd of the same kind over this one",
        box=None,
    )
    table.add_column("prompt", justify="right")
    table.add_column("contender", no_wrap=True)
    titles = ("first ms", "prompt/s", "decode/s", "all/s", "p50 ms", "p99 ms", "per step", "pads")
    for title in (*titles, "×prompt", "×decode", "×all", "of bound"):
        table.add_column(title, justify="right")
    last = None
    for one in found:
        table.add_row(
            "" if one.prompt_tokens == last else str(one.prompt_tokens),
            one.contender,
            f"{one.first_token_s * 1e3:.1f}",
            f"{one.prefill_tokens_per_s:.0f}",
            f"{one.decode_tokens_per_s:.1f}",
            f"{one.total_tokens_per_s:.1f}",
            f"{one.gap_p50_s * 1e3:.1f}",
            f"{one.gap_p99_s * 1e3:.1f}",
            _number(one.tokens_per_step),
            "" if one.pad_positions is None else str(one.pad_positions),
            *map(_number, _ratios(one)),
            _share(one, bounds),
        )
        last = one.prompt_tokens
    return table


def _ratios(one: Figures) -> tuple[float | None, ...]:
    return (one.reference_prefill_ratio, one.reference_decode_ratio, one.reference_total_ratio)


def _share(one: Figures, bounds: dict[int, float]) -> str:
    bound = bounds.get(one.prompt_tokens)
    return "" if bound is None or one.kind != "plain" else f"{one.decode_tokens_per_s / bound:.0%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def cost_table(costs: Sequence[dict[str, Any]]) -> Table:
    """A line per contender: steps by width."""
    table = Table(title="a step by its positions, ms (ratio to one position)", box=None)
    table.add_column("contender")
    for width in costs[0]["ms"]:
        table.add_column(width, justify="right")
    table.add_column(f"prompt of {costs[0]['prefill_tokens']}, tokens/s", justify="right")
    for one in costs:
        cells = [f"{one['ms'][width]:.2f} ({one['ratios'][width]:.2f})" for width in one["ms"]]
        table.add_row(one["contender"], *cells, f"{one['prefill_tokens_per_s']:.0f}")
    return table


def overhead_lines(path: dict[str, Any]) -> list[str]:
    """What the way through the daemon costs, in sentences."""
    return [
        f"through gRPC a token takes {path['gap_ms']:.2f} ms, its step alone "
        f"{path['step_ms']:.2f} ms: {path['overhead_ms_per_token']:.2f} ms more",
        f"the first token of a prompt of {path['prompt_tokens']} takes "
        f"{path['first_token_ms']:.2f} ms, the runner alone {path['prefill_ms']:.2f} ms: "
        f"{path['overhead_ms_first_token']:.2f} ms more",
    ]


def bound_line(roofline: dict[str, Any]) -> str:
    """The bandwidth and what follows from it."""
    rate = roofline["read_bytes_per_s"] / 1e9
    mega = roofline["file"]["weight_bytes"] / 1e6, roofline["specd"]["weight_bytes"] / 1e6
    first = roofline["bounds"][0]
    return (
        f"memory reads {rate:.1f} GB/s; a step reads {mega[0]:.1f} MB of weights as the file packs "
        f"them, {mega[1]:.1f} MB as specd holds them: at most {first['file_tokens_per_s']:.0f} and "
        f"{first['specd_tokens_per_s']:.0f} tokens/s behind a prompt of {first['prompt_tokens']}"
    )


def roll_lines(entries: Sequence[Entry]) -> list[str]:
    """Who did not take part, and who did not sit still."""
    lines = [
        f"{entry.state}: {entry.contender.name} ({_short(entry.reason)})"
        for entry in entries
        if entry.state != "ran"
    ]
    lines += [
        f"{entry.contender.name} used {entry.idle_cpu_share:.0%} of a core while nobody asked it"
        for entry in entries
        if (entry.idle_cpu_share or 0) > _SPINNING
    ]
    return lines


def load_lines(load: float) -> list[str]:
    """A warning where others used this machine: contenders that spin at barriers suffer most."""
    if load < _BUSY:
        return []
    return [f"the machine was busy, load {load:.1f} before the start: compare nobody by this run"]


def _short(reason: str | None) -> str:
    lines = (reason or "").splitlines()
    return lines[-1] if lines else ""


def show(lines: Sequence[str], on: Console) -> None:
    """Print sentences as they are."""
    for line in lines:
        on.print(Text(line), soft_wrap=True)


def roll(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Everybody, as JSON."""
    return [
        {
            "name": entry.contender.name,
            "kind": entry.contender.kind,
            "state": entry.state,
            "reason": entry.reason,
            "version": entry.version,
            "idle_cpu_share": entry.idle_cpu_share,
        }
        for entry in entries
    ]
