"""From a model file to a warm runner. Runs on the device thread, once.

Knows the order: open, choose kernels, assemble, fingerprint. Invariant: what it returns has run at
least one step of every kind of bucket, and its fingerprint names everything that decides a bit.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from specd import __version__
from specd.core.choice import choose_kernels
from specd.device.assembly import DeviceSettings, Progress, assemble
from specd.device.probe import ProbeReport
from specd.device.runner import Runner
from specd.model.arch import ModelConfig, check_tokenizer, config_from_gguf
from specd.model.formats import Invariance
from specd.model.opening import open_model
from specd.text.chat import ChatTemplate
from specd.text.tokenizer import Tokenizer

_log = logging.getLogger("specd.boot")

_SHOWN_FINDINGS = 3
_HASH_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class Booted:
    """A model that is ready to serve.

    invariance: what is promised; relaxed although strict was asked for if the probe found that
    this machine cannot keep it.
    """

    runner: Runner
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
        StartFailed: the KV memory holds less than one page, or the kernels are not to be had.
    """
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    num_threads = torch.get_num_threads()
    file = open_model(settings.model_path)
    config = config_from_gguf(file.metadata)
    tokenizer = Tokenizer.from_source(file)
    check_tokenizer(config, tokenizer.vocab_size)
    strict = settings.invariance == "strict"
    kernels = choose_kernels(settings.kernels, config)
    assembled = assemble(settings, file, config, kernels, progress)
    # The choice too: 8-bit blocks that torch multiplies as bf16 are other numbers than plain bf16.
    formats = (settings.weights, *assembled.formats)
    report = assembled.report
    promised: Invariance = "strict" if strict and report.invariant else "relaxed"
    _log_report(settings, report, promised)
    return Booted(
        runner=assembled.runner,
        config=config,
        tokenizer=tokenizer,
        template=ChatTemplate.from_source(file, tokenizer),
        num_pages=assembled.runner.num_pages,
        invariance=promised,
        report=report,
        fingerprint=fingerprint(file.files, formats, kernels, num_threads, promised),
    )


def _log_report(settings: DeviceSettings, report: ProbeReport, promised: Invariance) -> None:
    _log.info(
        "probe: %d checks in %.2f s, %d findings; invariance %s",
        report.num_checks,
        report.seconds,
        len(report.findings),
        promised,
    )
    if settings.invariance == "strict" and promised == "relaxed":
        for finding in report.findings[:_SHOWN_FINDINGS]:
            _log.warning("strict invariance is not promised on this machine: %s", finding)
        if more := len(report.findings[_SHOWN_FINDINGS:]):
            _log.warning("and %d more findings, which GetServerInfo tells", more)


def fingerprint(
    files: Sequence[Path],
    formats: Sequence[str],
    kernels: str,
    num_threads: int,
    invariance: Invariance,
) -> str:
    """Hash of all that decides a bit: equal fingerprints promise equal tokens."""
    facts = {
        "model": [_file_hash(path) for path in files],
        "specd": __version__,
        "formats": list(formats),
        "kernels": kernels,
        "torch": torch.__version__,
        "llguidance": version("llguidance"),  # whose masks decide where there is a structure
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor() if kernels == "torch" else {},
        "threads": num_threads,
        "invariance": invariance,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _processor() -> dict[str, object]:
    """By what the libraries below torch choose their products: name, instruction sets, caches."""
    # torch 2.11 may lack it.
    told: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return {name: value for name, value in told.items() if not name.startswith("num_")}


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
