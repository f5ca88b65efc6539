"""From a model file to a warm runner. Runs on the device thread, once.

Knows the order: open, read, size the KV pool, probe, warm up. Invariant: what it returns has run at
least one step of every kind of bucket, and its fingerprint names everything that decides a bit.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from specd.device.eager import EagerRunner, packed_buckets
from specd.device.probe import ProbeReport, probe
from specd.engine.padding import pad
from specd.engine.params import SamplingParams
from specd.engine.step_types import CleanDraft, LayoutSpec, PlannedRow
from specd.errors import StartFailed
from specd.kv.pages import PAGE_SIZE, RESERVED_PAGES, pages_for
from specd.model.arch import ModelConfig, check_tokenizer, config_from_gguf
from specd.model.decoder import Decoder
from specd.model.formats import Invariance, WeightFormat
from specd.model.gguf_file import GGUFFile
from specd.model.weights import load_weights
from specd.text.chat import ChatTemplate
from specd.text.tokenizer import Tokenizer

_log = logging.getLogger("specd.boot")

Progress = Callable[[str, int, int], None]  # stage, done, total
_HASH_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What the operator chose. kv_memory: bytes. num_threads: of torch, 0 leaves its default."""

    model_path: Path
    weights: WeightFormat
    invariance: Invariance
    kv_memory: int
    max_rows: int
    max_positions: int
    num_threads: int


@dataclass(frozen=True, slots=True)
class Booted:
    """A model that is ready to serve.

    invariance: what is promised; relaxed although strict was asked for if the probe found that
    this machine cannot keep it.
    """

    runner: EagerRunner
    config: ModelConfig
    tokenizer: Tokenizer
    template: ChatTemplate
    num_pages: int
    invariance: Invariance
    report: ProbeReport
    fingerprint: str


def boot(settings: DeviceSettings, progress: Progress = lambda stage, done, total: None) -> Booted:
    """Load and warm up.

    Raises:
        ModelFileError: the file cannot be served.
        StartFailed: the KV memory holds less than one page.
    """
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    file = GGUFFile.open(settings.model_path)
    config = config_from_gguf(file.metadata)
    tokenizer = Tokenizer.from_gguf(file.metadata)
    check_tokenizer(config, tokenizer.vocab_size)
    strict = settings.invariance == "strict"
    weights = load_weights(
        file,
        config,
        settings.weights,
        strict=strict,
        progress=lambda done, total: progress("loading", done, total),
    )
    num_pages = _num_pages(settings, config, weights.dtype)
    layout = LayoutSpec(packed_buckets(settings.max_positions))
    decoder = Decoder(config, weights)
    runner = EagerRunner(decoder, num_pages=num_pages, layout=layout, strict=strict)
    report = probe(runner)
    _warm_up(runner, progress)
    formats = sorted({linear.format for linear in weights.linears()})
    promised: Invariance = "strict" if strict and report.invariant else "relaxed"
    _log_report(settings, report, promised)
    return Booted(
        runner=runner,
        config=config,
        tokenizer=tokenizer,
        template=ChatTemplate.from_gguf(file.metadata, tokenizer),
        num_pages=num_pages,
        invariance=promised,
        report=report,
        fingerprint=fingerprint(settings.model_path, formats, promised),
    )


def _num_pages(settings: DeviceSettings, config: ModelConfig, dtype: torch.dtype) -> int:
    """Pages that fit the memory, but no more than all rows could ever use."""
    page_bytes = config.num_layers * PAGE_SIZE * config.kv_width * dtype.itemsize
    fitting = settings.kv_memory // page_bytes - RESERVED_PAGES
    if fitting < 1:
        raise StartFailed(
            f"--kv-memory of {settings.kv_memory} bytes holds no page of {page_bytes} bytes"
        )
    return min(fitting, settings.max_rows * pages_for(config.context_length))


def _warm_up(runner: EagerRunner, progress: Progress) -> None:
    """Run each packed bucket once as a prompt: first calls build kernels and are slow."""
    buckets = runner.layout.packed_buckets
    room = min(runner.num_pages * PAGE_SIZE, runner.decoder.config.context_length)
    for done, bucket in enumerate(buckets):
        count = min(bucket, room)
        row = PlannedRow("warm-up", 0, (0,) * count, 0, True, SamplingParams(temperature=0))
        pages = range(RESERVED_PAGES, RESERVED_PAGES + pages_for(count))
        runner.step(pad([row], [CleanDraft()], [pages], runner.layout))
        progress("warming up", done + 1, len(buckets))


def _log_report(settings: DeviceSettings, report: ProbeReport, promised: Invariance) -> None:
    _log.info(
        "probe: %d checks in %.2f s, %d findings; invariance %s",
        report.num_checks,
        report.seconds,
        len(report.findings),
        promised,
    )
    if settings.invariance == "strict" and promised == "relaxed":
        for finding in report.findings:
            _log.warning("strict invariance is not promised on this machine: %s", finding)


def fingerprint(model_path: Path, formats: list[str], invariance: Invariance) -> str:
    """Hash of all that decides a bit: equal fingerprints promise equal tokens."""
    facts = {
        "model": _file_hash(model_path),
        "formats": formats,
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "invariance": invariance,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
