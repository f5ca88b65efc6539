"""The doctor's comparison of answers: the whole engine on a toy model, right and with faults."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.toy_gguf import build_toy_model
from drafters.contract import BaseDrafter, DraftContext, Drafter
from specd.device import verifier
from specd.device.assembly import DeviceSettings
from specd.device.thread import DeviceThread
from specd.doctor.answers import NUM_NEW, PROMPT_LENGTHS, Answers, Case, samplings
from specd.doctor.finding import Finding
from specd.engine.book import Book
from specd.engine.request import Request
from specd.engine.step_types import TokenLogprob
from specd.kv.pages import PAGE_SIZE

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    build_toy_model(path, layers=1)
    return path


def cases(vocab_size: int) -> list[Case]:
    """One of each sampling and two of each prompt, at least."""
    chosen = samplings(7, vocab_size)
    prompts = [[3 + place % 200 for place in range(length)] for length in PROMPT_LENGTHS]
    return [
        Case(f"{name}, prompt of {len(prompt)}", tuple(prompt), sampling)
        for prompt in (prompts[0], prompts[2])
        for name, sampling in chosen.items()
    ]


async def compared(
    toy: Path, guests: Mapping[str, Drafter] | None = None, invariance: str = "strict"
) -> list[Finding]:
    device = DeviceThread()
    try:
        booted = await device.boot(
            DeviceSettings(
                model_path=toy,
                weights="fp32",
                invariance="relaxed" if invariance == "relaxed" else "strict",
                kernels="torch" if invariance == "relaxed" else "auto",
                kv_memory=1 << 26,
                max_rows=16,
                max_positions=64,
                num_threads=1,
            ),
            lambda stage, done, total: None,
        )
        some = cases(booted.config.vocab_size)
        answers = Answers(device, booted, some, guests or {}, random.Random(3))
        return [finding async for finding in answers.compare()]
    finally:
        device.close(2)


def in_company(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if "alone" not in finding.name]


class Crashing(BaseDrafter):
    inline = True

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> list[list[int]]:
        raise LookupError("it has no idea")


async def test_every_drafter_and_company_gives_the_same_answers(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preempted: list[str] = []
    right = Book.preempt

    def preempt(book: Book, request: Request) -> None:
        preempted.append(request.request_id)
        right(book, request)

    monkeypatch.setattr(Book, "preempt", preempt)
    findings = await compared(toy, {"a guest": Crashing()})
    assert [finding.first for finding in findings if finding.differences] == []
    companies = ("alone", "8 together", "short of pages")
    names = ["no drafts", "an oracle", "wrong tokens", "random lengths", "a guest"]
    assert [finding.name for finding in findings] == [
        f"{name}, {company}" for name in names for company in companies
    ]
    assert all(finding.compared == 8 for finding in in_company(findings))
    assert preempted, "there were pages enough for all"
    kept = {finding.name: (finding.kept, finding.drafted) for finding in in_company(findings)}
    assert kept["no drafts, 8 together"] == kept["a guest, 8 together"] == (0, 0)
    right, drafted = kept["an oracle, 8 together"]
    assert right == drafted > 0
    right, drafted = kept["wrong tokens, 8 together"]
    assert right == 0 < drafted
    right, drafted = kept["random lengths, 8 together"]
    assert 0 < right < drafted


async def test_relaxed_arithmetic_gives_other_answers_in_company(toy: Path) -> None:
    findings = await compared(toy, invariance="relaxed")
    assert all(finding.differences for finding in in_company(findings))


async def test_a_verifier_that_accepts_one_token_too_many_is_found(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = verifier.accepted_length

    def lenient(draft: Sequence[int], sampled: list[int]) -> int:
        accepted = min(right(draft, sampled) + 1, len(draft), len(sampled) - 1)
        sampled[:accepted] = draft[:accepted]  # and tells what it accepts
        return accepted

    monkeypatch.setattr(verifier, "accepted_length", lenient)
    findings = await compared(toy)
    wrong = [finding for finding in findings if "wrong tokens" in finding.name]
    assert all(finding.differences == finding.compared for finding in wrong)
    assert all("instead of" in (finding.first or "") for finding in wrong)
    assert not any(finding.differences for finding in findings if "no drafts" in finding.name)


async def test_a_log_probability_that_depends_on_drafts_is_found(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = verifier._logprobs

    def dependent(asked: verifier._Asked, *rest: object) -> tuple[TokenLogprob, ...]:
        found = right(asked, *rest)  # type: ignore[arg-type]
        if not asked.row.draft:
            return found
        return tuple(replace(one, logprob=(one.logprob or 0.0) - 1e-7) for one in found)

    monkeypatch.setattr(verifier, "_logprobs", dependent)
    findings = await compared(toy)
    told = {finding.first for finding in findings if finding.differences}
    assert told
    assert all("the same tokens with other log probabilities" in str(first) for first in told)


async def test_answers_cross_a_page_and_a_multiple_of_128() -> None:
    assert max(PROMPT_LENGTHS) < 128 < max(PROMPT_LENGTHS) + NUM_NEW
    assert any(length < PAGE_SIZE < length + NUM_NEW for length in PROMPT_LENGTHS)
