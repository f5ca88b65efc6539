"""The check of the guarantee on this machine, with a model of the user's: probe, bits, answers.

Knows the order and how long it goes on. Invariant: what is reported was compared on the runner that
`specd serve` would have made of the same settings.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from drafters.contract import Drafter
from specd.device.assembly import DeviceSettings
from specd.device.boot import Booted
from specd.device.core_probe import probe_core
from specd.device.core_runner import CoreRunner
from specd.device.eager import EagerRunner
from specd.device.probe import ProbeReport, probe
from specd.device.runner import Runner
from specd.device.thread import DeviceThread
from specd.doctor import answers as answering
from specd.doctor.answers import Answers, Case
from specd.doctor.bits import Bits, prompt_lengths
from specd.doctor.finding import Finding, joined
from specd.errors import StartFailed

MIN_CONTEXT = 192  # the shortest prompt of the bits, its answer and drafts, with room
MAX_ROWS = 16
KV_MEMORY = 1 << 30
_CLOSE_PATIENCE_S = 2.0

Told = Callable[[str], None]  # what is done now, for people


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in `rounds` rounds. booted: the model that was checked."""

    booted: Booted
    findings: tuple[Finding, ...]
    rounds: int
    seconds: float

    @property
    def differences(self) -> int:
        return sum(finding.differences for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Course:
    """How much is checked. seed: of the random choices. minutes: whole rounds until these are over,
    one at least."""

    seed: int = 0
    minutes: float = 0.0


async def check_up(
    settings: DeviceSettings,
    text: str,
    guests: Mapping[str, Drafter],
    course: Course,
    told: Told,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Load a model and compare everything. text: what prompts are cut from.

    Raises:
        StartFailed: the model cannot be served, or is too small to be checked.
        RequestFailed: it answers nothing that could be compared.
    """
    device = DeviceThread()
    try:
        booted = await device.boot(settings, lambda stage, done, total: told(stage))
        return await _checked(device, booted, text, guests, course, told, clock)
    finally:
        device.close(_CLOSE_PATIENCE_S)


async def _checked(
    device: DeviceThread,
    booted: Booted,
    text: str,
    guests: Mapping[str, Drafter],
    course: Course,
    told: Told,
    clock: Callable[[], float],
) -> Report:
    ids = _ids_of(booted, text)
    start_s = clock()
    told("operations")
    findings = [_operations(await device.run(partial(full_probe, booted.runner)))]
    rounds = 0
    while rounds == 0 or clock() - start_s < 60 * course.minutes:
        rng = random.Random(course.seed + rounds)
        told(f"logits, round {rounds + 1}")
        bits = await device.run(partial(_bits, booted, ids, rng))
        for comparison in bits.comparisons():
            finding = await device.run(partial(comparison, rng))
            findings.append(finding)
        cases = _cases(booted, ids, rng)
        async for finding in Answers(device, booted, cases, guests, rng).compare():
            told(f"tokens, round {rounds + 1}: {finding.name}")
            findings.append(finding)
        rounds += 1
    return Report(booted, tuple(joined(findings)), rounds, clock() - start_s)


def _ids_of(booted: Booted, text: str) -> list[int]:
    """Raises StartFailed for a model that is too small."""
    if booted.config.context_length < MIN_CONTEXT:
        raise StartFailed(
            f"a context of {booted.config.context_length} positions is too short for this check, "
            f"which takes {MIN_CONTEXT}"
        )
    return booted.tokenizer.encode(text, parse_special=False, add_special=False)


def full_probe(runner: Runner) -> ProbeReport:
    """The probe of the start, at the full length of what will run; belongs to the device thread."""
    if isinstance(runner, CoreRunner):
        return probe_core(runner, length=runner.layout.packed_buckets[-1])
    assert isinstance(runner, EagerRunner), "there are two kinds of runner"
    return probe(runner, full=True)


def _operations(report: ProbeReport) -> Finding:
    first = report.findings[0] if report.findings else None
    return Finding(
        "operations", "the probe", report.num_checks, "checks", len(report.findings), first
    )


def _bits(booted: Booted, ids: Sequence[int], rng: random.Random) -> Bits:
    lengths = prompt_lengths(booted.config.context_length)
    return Bits(booted.runner, [_window(ids, length, rng) for length in lengths])


def _cases(booted: Booted, ids: Sequence[int], rng: random.Random) -> list[Case]:
    samplings = answering.samplings(rng.getrandbits(64), booted.config.vocab_size)
    cases = [
        Case(f"{name}, prompt of {length}", tuple(_window(ids, length, rng)), sampling)
        for length in answering.PROMPT_LENGTHS
        for name, sampling in samplings.items()
    ]
    rng.shuffle(cases)
    return cases


def _window(ids: Sequence[int], length: int, rng: random.Random) -> list[int]:
    """`length` ids from a random place on, over and over."""
    start = rng.randrange(len(ids))
    return [ids[(start + place) % len(ids)] for place in range(length)]
