"""From a model on disk to a warm runner: weights, KV pool, probe, first steps.

Knows both kinds of runner; nothing of tokenizers or requests.
Invariant: a runner that is returned has run steps, and its probe compared bits on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from specd.core.decoder import CoreDecoder
from specd.core.loader import CoreLoader
from specd.device.core_probe import probe_core
from specd.device.core_runner import CoreRunner
from specd.device.eager import EagerRunner, packed_buckets
from specd.device.probe import ProbeReport, probe
from specd.device.runner import Runner
from specd.engine.padding import pad
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, CleanDraft, LayoutSpec, PlannedRow
from specd.errors import StartFailed
from specd.kv.pages import PAGE_SIZE, RESERVED_PAGES, pages_for
from specd.model.arch import ModelConfig
from specd.model.decoder import Decoder
from specd.model.formats import Invariance, Kernels, WeightFormat
from specd.model.source import ModelSource
from specd.model.weights import ModelWeights, load_weights, read_weights

Progress = Callable[[str, int, int], None]  # stage, done, total


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What the operator chose. kv_memory: bytes. num_threads: 0 leaves torch's default."""

    model_path: Path
    weights: WeightFormat
    invariance: Invariance
    kernels: Kernels
    kv_memory: int
    max_rows: int
    max_positions: int
    num_threads: int


@dataclass(frozen=True, slots=True)
class Assembled:
    """A warm runner, what its probe found, and the formats of its linear layers."""

    runner: Runner
    report: ProbeReport
    formats: tuple[str, ...]


def assemble(
    settings: DeviceSettings,
    source: ModelSource,
    config: ModelConfig,
    kernels: str,
    progress: Progress,
) -> Assembled:
    """Load the weights and warm a runner up.

    Raises:
        ModelFileError: the weights cannot be served.
        StartFailed: the KV memory holds less than one page.
    """

    def loading(done: int, total: int) -> None:
        progress("loading", done, total)

    if kernels == "torch":
        strict = settings.invariance == "strict"
        weights = load_weights(source, config, settings.weights, strict=strict, progress=loading)
        num_pages = _num_pages(settings, config, weights.kv_dtype)
        layout = LayoutSpec(packed_buckets(settings.max_positions))
        eager = EagerRunner(
            Decoder(config, weights), num_pages=num_pages, layout=layout, strict=strict
        )
        report = probe(eager)
        _warm_up(eager, layout.packed_buckets, progress)
        return Assembled(eager, report, _formats(weights))
    loader = CoreLoader(source, config, settings.weights, isa=kernels)
    weights = read_weights(loader, config, loading)
    decoder = CoreDecoder(config, weights, isa=kernels, max_positions=settings.max_positions)
    # What torch still does are small things. With threads it would keep one spinning behind each of
    # them, beside the core's own: 4 ms of a step of 25 at 1.5B.
    torch.set_num_threads(1)
    num_pages = _num_pages(settings, config, weights.kv_dtype)
    runner = CoreRunner(decoder, num_pages=num_pages)
    report = probe_core(runner)
    _warm_up(runner, (1,), progress)
    return Assembled(runner, report, _formats(weights))


def _formats(weights: ModelWeights) -> tuple[str, ...]:
    return tuple(sorted({linear.format for linear in weights.linears()}))


def _num_pages(settings: DeviceSettings, config: ModelConfig, dtype: torch.dtype) -> int:
    """Pages that fit the memory, but no more than all rows could ever use."""
    page_bytes = config.num_layers * PAGE_SIZE * config.kv_width * dtype.itemsize
    fitting = settings.kv_memory // page_bytes - RESERVED_PAGES
    if fitting < 1:
        raise StartFailed(
            f"--kv-memory of {settings.kv_memory} bytes holds no page of {page_bytes} bytes"
        )
    return min(fitting, settings.max_rows * pages_for(config.context_length))


def _warm_up(runner: Runner, totals: Iterable[int], progress: Progress) -> None:
    """Run a prompt of each length: first calls build kernels and are slow."""
    counts = tuple(totals)
    room = min(runner.num_pages * PAGE_SIZE, runner.config.context_length)
    for done, total in enumerate(counts):
        count = min(total, room)
        row = PlannedRow(
            "warm-up", 0, (0,) * count, 0, True, Choosing(SamplingParams(temperature=0))
        )
        pages = range(RESERVED_PAGES, RESERVED_PAGES + pages_for(count))
        runner.step(pad([row], [CleanDraft()], [pages], runner.layout))
        progress("warming up", done + 1, len(counts))
