"""`specd inspect`: a model file or folder as tables for people, or as one JSON document.

Knows how facts are shown; they come from `model/inspection.py` and `device/bandwidth.py`. Tables
fit 100 columns. Exit status: 0 for a model that can be served, 1 for any other, with the sentence
with which the daemon would refuse it; what could be learned of it is shown all the same.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps

import torch
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from specd.core.choice import choose_kernels
from specd.core.measuring import MeasuringCoreLoader
from specd.device.bandwidth import Bandwidth, read_bandwidth
from specd.errors import StartFailed
from specd.model.arch import ModelConfig
from specd.model.catalog import resolve
from specd.model.formats import Kernels, WeightFormat
from specd.model.gguf_file import TensorInfo
from specd.model.inspection import (
    Group,
    Inspection,
    MakeLoader,
    StepBytes,
    TokenizerFacts,
    groups,
    inspect,
)
from specd.model.inspection import Progress as Told
from specd.model.measuring import Conversion, Deviation, MeasuringLoader
from specd.model.source import ModelSource

COLUMNS = 100
_NUMBERS_PER_ROW = 2


def run(parsed: argparse.Namespace) -> int:
    """Inspect `parsed.model` and print what was found; return the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show every character
        sys.stdout.reconfigure(errors="replace")
    if parsed.threads:
        torch.set_num_threads(parsed.threads)
    try:
        with _progress() as told:
            found = inspect(
                resolve(parsed.model), parsed.weights, parsed.context, told, _loader(parsed.kernels)
            )
    except StartFailed as error:
        print(f"specd: {error}", file=sys.stderr)
        if parsed.json:
            print(dumps({"error": str(error)}))
        return 1
    speed = read_bandwidth() if found.step is not None else None
    if parsed.json:
        print(dumps(_document(found, speed, with_tensors=parsed.tensors), allow_nan=False))
    else:
        _show(found, speed, with_tensors=parsed.tensors)
    if found.problem is not None:
        print(f"specd: {found.problem}", file=sys.stderr)
        return 1
    return 0


def _loader(wanted: Kernels) -> MakeLoader:
    """The loader of the kernels that `specd serve` would choose. Raises StartFailed."""

    def make(source: ModelSource, config: ModelConfig, weights: WeightFormat) -> MeasuringLoader:
        kernels = choose_kernels(wanted, config)
        if kernels == "torch":
            return MeasuringLoader(source, config, weights)
        return MeasuringCoreLoader(source, config, weights, isa=kernels)

    return make


@contextmanager
def _progress() -> Iterator[Told]:
    console = Console(stderr=True)
    columns = (TextColumn("converting"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        task = bars.add_task("", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _show(found: Inspection, speed: Bandwidth | None, *, with_tensors: bool) -> None:
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=COLUMNS)
    console.print(Text(f"{found.path} ({decimal(found.file_bytes)})"), soft_wrap=True)
    console.print(Text(f"{found.name}, architecture {found.architecture or 'unnamed'}"))
    for note in found.notes:
        console.print(Text(note))
    console.print(_numbers_table(found))
    for line in _tokenizer_lines(found):
        console.print(Text(line))
    console.print()
    console.print(_group_table(found))
    if with_tensors:
        console.print()
        console.print(_tensor_table(found))
    if found.step is not None and speed is not None:
        console.print()
        for line in _step_lines(found.step, speed):
            console.print(Text(line))
    if found.problem is not None:
        console.print()
        console.print(Text(f"It cannot be served: {found.problem}"), soft_wrap=True)


def _numbers_table(found: Inspection) -> Table:
    table = Table(box=None, show_header=False)
    cells = [Text(f"{key} {_plain(value)}") for key, value in found.numbers.items()]
    cells += [Text("")] * (-len(cells) % _NUMBERS_PER_ROW)
    for start in range(0, len(cells), _NUMBERS_PER_ROW):
        table.add_row(*cells[start : start + _NUMBERS_PER_ROW])
    return table


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value!s:.60}"


def _tokenizer_lines(found: Inspection) -> Iterator[str]:
    facts = found.tokenizer
    if facts is None:
        return
    yield f"vocabulary {facts.vocab_size} tokens, fingerprint {facts.fingerprint}"
    begin = "none" if facts.bos is None else _token(facts.bos)
    ends = ", ".join(map(_token, facts.eos)) or "none"
    yield f"begins with {begin}; ends with {ends}; {len(facts.control)} control tokens"
    yield f"chat template: {'yes' if found.has_chat_template else 'none that can be used'}"


def _token(token: tuple[int, str]) -> str:
    return f"{dumps(token[1], ensure_ascii=False)} ({token[0]})"


def _group_table(found: Inspection) -> Table:
    table = Table(box=None)
    is_converted = bool(found.conversions)
    table.add_column("in the file")
    if is_converted:
        table.add_column("used as")
        table.add_column("in memory")
    for title in ("tensors", "file bytes"):
        table.add_column(title, justify="right")
    if is_converted:
        for title in ("memory bytes", "relative RMS", "largest error"):
            table.add_column(title, justify="right")
    all_groups = groups(found)
    for group in all_groups:
        table.add_row(*_group_cells(group))
    file_bytes = sum(group.file_bytes for group in all_groups if not group.is_second)
    num_tensors = str(len(found.tensors))
    if is_converted:
        memory = sum(group.memory_bytes or 0 for group in all_groups)
        table.add_row("all", "", "", num_tensors, f"{file_bytes:,}", f"{memory:,}")
    else:
        table.add_row("all", num_tensors, f"{file_bytes:,}")
    return table


def _group_cells(group: Group) -> list[str]:
    stored = "(the same)" if group.is_second else f"{group.file_bytes:,}"
    if group.deviation is None:
        return [group.block_type, str(group.num_tensors), stored]
    return [
        group.block_type,
        group.use or "",
        group.format or "",
        str(group.num_tensors),
        stored,
        f"{group.memory_bytes:,}" if group.memory_bytes else "(the same)",
        *_error_cells(group.deviation),
    ]


def _error_cells(deviation: Deviation) -> tuple[str, str]:
    if math.isnan(deviation.relative_rms) or math.isnan(deviation.max_abs):
        return "not finite", "not finite"
    if deviation.relative_rms == 0:
        return "exact", ""
    return f"{deviation.relative_rms:.3%}", f"{deviation.max_abs:.2e}"


def _tensor_table(found: Inspection) -> Table:
    table = Table(box=None)
    table.add_column("tensor", overflow="fold")
    for title in ("shape", "in the file", "in memory"):
        table.add_column(title)
    for title in ("file bytes", "memory", "rel. RMS"):
        table.add_column(title, justify="right")
    for tensor, one in _uses(found):
        name, shape = Text(tensor.name), "x".join(map(str, tensor.shape))
        stored = f"{tensor.data.nbytes:,}"
        if one is None:
            table.add_row(name, shape, tensor.type_name, "", stored)
            continue
        table.add_row(
            name,
            shape,
            tensor.type_name,
            one.format if one.use != "head" else f"{one.format} (head)",
            "(the same)" if one.is_second else stored,
            f"{one.memory_bytes:,}" if one.memory_bytes else "(the same)",
            _error_cells(one.deviation)[0],
        )
    return table


def _uses(found: Inspection) -> Iterator[tuple[TensorInfo, Conversion | None]]:
    if found.conversions:
        yield from ((one.tensor, one) for one in found.conversions)
    else:
        yield from ((tensor, None) for tensor in found.tensors)


def _step_lines(step: StepBytes, speed: Bandwidth) -> Iterator[str]:
    yield (
        f"a plain step reads {decimal(step.total)}: layers {decimal(step.layers)}, head "
        f"{decimal(step.head)}, K and V of {step.context} positions {decimal(step.kv)}"
    )
    threads = "1 thread" if speed.num_threads == 1 else f"{speed.num_threads} threads"
    yield f"this machine reads {speed.bytes_per_s / 1e9:.1f} GB/s with {threads}"
    yield (
        f"so a step takes at least {_floor_ms(step, speed):.2f} ms, and plain decoding reaches at "
        f"most {1000 / _floor_ms(step, speed):.1f} tokens/s"
    )


def _floor_ms(step: StepBytes, speed: Bandwidth) -> float:
    return step.total / speed.bytes_per_s * 1000


def _document(
    found: Inspection, speed: Bandwidth | None, *, with_tensors: bool
) -> dict[str, object]:
    all_groups = groups(found)
    document: dict[str, object] = {
        "path": str(found.path),
        "bytes": found.file_bytes,
        "name": found.name,
        "architecture": found.architecture,
        "notes": list(found.notes),
        "numbers": {key: _finite(value) for key, value in found.numbers.items()},
        "tokenizer": None if found.tokenizer is None else _tokenizer_document(found.tokenizer),
        "has_chat_template": found.has_chat_template,
        "weights": found.weights,
        "num_tensors": len(found.tensors),
        "groups": [_group_document(group) for group in all_groups],
        "step": None if found.step is None or speed is None else _step_document(found.step, speed),
        "can_be_served": found.problem is None,
        "problem": found.problem,
    }
    if with_tensors:
        document["tensors"] = [_tensor_document(*use) for use in _uses(found)]
    return document


def _tokenizer_document(facts: TokenizerFacts) -> dict[str, object]:
    def token(one: tuple[int, str]) -> dict[str, object]:
        return {"id": one[0], "text": one[1]}

    return {
        "vocab_size": facts.vocab_size,
        "fingerprint": facts.fingerprint,
        "bos": None if facts.bos is None else token(facts.bos),
        "eos": [token(one) for one in facts.eos],
        "control": [token(one) for one in facts.control],
    }


def _group_document(group: Group) -> dict[str, object]:
    return {
        "type": group.block_type,
        "use": group.use,
        "format": group.format,
        "tensors": group.num_tensors,
        "file_bytes": group.file_bytes,
        "is_second_use": group.is_second,
        "memory_bytes": group.memory_bytes,
    } | _error_document(group.deviation)


def _tensor_document(tensor: TensorInfo, one: Conversion | None) -> dict[str, object]:
    return {
        "name": tensor.name,
        "shape": tensor.shape,
        "type": tensor.type_name,
        "file_bytes": tensor.data.nbytes,
        "use": None if one is None else one.use,
        "format": None if one is None else one.format,
        "is_second_use": one is not None and one.is_second,
        "memory_bytes": None if one is None else one.memory_bytes,
    } | _error_document(None if one is None else one.deviation)


def _error_document(deviation: Deviation | None) -> dict[str, object]:
    return {
        "relative_rms_error": None if deviation is None else _finite(deviation.relative_rms),
        "max_abs_error": None if deviation is None else _finite(deviation.max_abs),
    }


def _finite(value: object) -> object:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _step_document(step: StepBytes, speed: Bandwidth) -> dict[str, object]:
    floor_ms = _floor_ms(step, speed)
    return {
        "layer_bytes": step.layers,
        "head_bytes": step.head,
        "kv_bytes": step.kv,
        "context": step.context,
        "total_bytes": step.total,
        "read_bytes_per_s": speed.bytes_per_s,
        "threads": speed.num_threads,
        "floor_ms": floor_ms,
        "ceiling_tokens_per_s": 1000 / floor_ms,
    }
