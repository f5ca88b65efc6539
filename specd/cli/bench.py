"""`specd bench`: how fast a daemon is, as a table for people or as one JSON document.

Knows how figures are shown; they come from `bench_runs.py`. Exit status: 0 measured, 1 failed with
one sentence, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text
from specd_client import Client, SpecdClientError
from specd_client.v1 import model_pb2

from specd.cli.bench_flags import OWN_FLAGS, PLAIN
from specd.cli.bench_runs import (
    CannotMeasure,
    Plan,
    Progress,
    Roofline,
    document,
    measure_all,
)
from specd.cli.calling import credentials, sentence
from specd.cli.child import DaemonFailed, running_daemon

COLUMNS = 124
_FAILED, _INTERRUPTED = 1, 130
_NO_SHARE = (
    "share of the memory bandwidth: left out, this daemon did not measure it; "
    "`specd inspect MODEL` tells the bound"
)
# What a column shows of a document; None where there is nothing to show.
_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("first ms", "first_token_ms", ".1f"),
    ("prompt/s", "prefill_tokens_per_s", ".0f"),
    ("decode/s", "decode_tokens_per_s", ".1f"),
    ("all/s", "total_tokens_per_s", ".1f"),
    ("memory", "roofline_share", ".0%"),
    ("speed-up", "speedup", ".2f"),
    ("accepted", "acceptance", ".0%"),
    ("per step", "tokens_per_step", ".2f"),
    ("pads", "pad_positions", "d"),
)


def run(parsed: argparse.Namespace) -> int:
    """Measure and print; return the exit status."""
    # A daemon of its own must not outlive this process.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _daemon(parsed) as address:
            parsed.address = address
            found = asyncio.run(_measured(parsed))
    except KeyboardInterrupt:
        print("specd: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except SpecdClientError as error:
        return _failed(sentence(error, parsed), parsed)
    except (CannotMeasure, DaemonFailed) as error:
        return _failed(str(error), parsed)
    if parsed.json:
        print(json.dumps(found, allow_nan=False))
    else:
        _show(found)
    return 0


@contextmanager
def _daemon(parsed: argparse.Namespace) -> Iterator[str]:
    """The address of the daemon that is measured."""
    if parsed.model is None:
        yield parsed.address
        return
    flags = ["--model", parsed.model, "--log-level", "WARNING"]
    for name in OWN_FLAGS:
        if getattr(parsed, name) is not None:
            flags += [f"--{name}", str(getattr(parsed, name))]
    for drafter in parsed.drafter or ():
        flags += ["--drafter", drafter]
    console = Console(stderr=True)
    status = console.status(f"starting a daemon with {parsed.model}")
    if console.is_terminal:
        status.start()
    try:
        with running_daemon(*flags) as child:
            status.stop()
            yield child.address
    finally:
        status.stop()


async def _measured(parsed: argparse.Namespace) -> dict[str, Any]:
    plan = _plan(parsed)
    async with Client(parsed.address, credentials=credentials(parsed), retries=False) as client:
        info = await client.server_info()
        with _progress() as progress:
            series = await measure_all(client, plan, progress)
    roofline = _roofline(info)
    results = []
    for one in series:
        if one.setting.is_plain:
            plain = one
        results.append(document(one, plain, roofline))
    return {
        "server": _server(info),
        "settings": _settings(plan),
        "roofline": None if roofline is None else asdict(roofline),
        "results": results,
    }


def _roofline(info: model_pb2.ServerInfo) -> Roofline | None:
    if not info.read_bytes_per_second:
        return None
    return Roofline(
        weight_bytes=info.weight_bytes,
        kv_bytes_per_position=info.kv_bytes_per_position,
        read_bytes_per_second=info.read_bytes_per_second,
    )


def _plan(parsed: argparse.Namespace) -> Plan:
    drafters = parsed.drafter
    return Plan(
        prompt_tokens=tuple(dict.fromkeys(parsed.prompt_tokens)),
        streams=tuple(dict.fromkeys(parsed.streams)),
        new_tokens=parsed.new_tokens,
        rounds=parsed.rounds,
        drafters=() if drafters == [PLAIN] else drafters and tuple(dict.fromkeys(drafters)),
        max_draft_tokens=parsed.max_draft_tokens,
        temperature=parsed.temperature,
    )


@contextmanager
def _progress() -> Iterator[Progress]:
    console = Console(stderr=True)
    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _server(info: model_pb2.ServerInfo) -> dict[str, Any]:
    return {
        "version": info.version,
        "model": info.model,
        "weights": info.weights,
        "kernels": info.kernels,
        "invariance": model_pb2.InvarianceMode
        .Name(info.invariance)
        .removeprefix("INVARIANCE_MODE_")
        .lower(),
        "arithmetic_fingerprint": info.arithmetic_fingerprint,
        "drafters": list(info.drafters),
    }


def _settings(plan: Plan) -> dict[str, Any]:
    return {
        "new_tokens": plan.new_tokens,
        "rounds": plan.rounds,
        "temperature": plan.temperature,
        "max_draft_tokens": plan.max_draft_tokens,
    }


def _show(found: dict[str, Any]) -> None:
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=COLUMNS)
    server, settings = found["server"], found["settings"]
    console.print(
        Text(
            f"{server['model']}, weights {server['weights']}, kernels {server['kernels']}, "
            f"invariance {server['invariance']}; "
            f"{settings['new_tokens']} new tokens, temperature {settings['temperature']:g}, "
            f"medians of {settings['rounds']} rounds; p50, p99: between two arrivals"
        ),
        soft_wrap=True,
    )
    console.print(_table(found["results"]))
    if any(not result["same_tokens_as_plain"] for result in found["results"]):
        console.print(Text("!: other tokens than plain decoding"))
    roofline = found["roofline"]
    console.print(Text(_NO_SHARE if roofline is None else _bound(roofline)), soft_wrap=True)


def _bound(roofline: dict[str, Any]) -> str:
    """What "memory" in the table is a share of."""
    weights, speed = roofline["weight_bytes"], roofline["read_bytes_per_second"]
    return (
        f"memory: of the {speed / 1e9:.1f} GB/s at which the daemon read its weights at start; a "
        f"step reads {weights / 1e9:.2f} GB of weights ({speed / weights:.1f} steps/s at most)"
    )


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for title in ("prompt", "streams"):
        table.add_column(title, justify="right")
    table.add_column("drafter", overflow="fold", min_width=len("drafter"))
    titles = [title for title, _, _ in _COLUMNS]
    titles.insert(4, "p50, p99 ms")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for result in results:
        mark = "" if result["same_tokens_as_plain"] else " !"
        cells = [_cell(result[key], form) for _, key, form in _COLUMNS]
        cells.insert(4, _gaps(result["latency_ms"]))
        name = Text(f"{result['drafter'] or PLAIN}{mark}")
        table.add_row(str(result["prompt_tokens"]), str(result["streams"]), name, *cells)
    return table


def _gaps(latency_ms: dict[str, float | None]) -> str:
    return f"{_cell(latency_ms['p50'], '.1f')}, {_cell(latency_ms['p99'], '.1f')}"


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _failed(message: str, parsed: argparse.Namespace) -> int:
    print(f"specd: {message}", file=sys.stderr)
    if parsed.json:
        print(json.dumps({"error": message}))
    return _FAILED
