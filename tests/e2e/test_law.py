"""The law, seen from outside: no drafter and no neighbour changes a token.

Plain runs (speculation off, one at a time) are made once by the daemon itself; the drafters that
have to know the answer replay them from a file. Everything else is compared with them. The whole
table runs on the default kernels, which are the core where it was built, and a part of it in torch.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client

from specd.core import library
from tests.e2e.calls import PROMPTS, answer, check_sums, drafter_stats, tokenized
from tests.e2e.drafters_under_test import RECORDING, spec
from tests.support.daemon import Daemon, daemon_process

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.9},
}
CROWDS = (0, 3, 16)
NUM_TOKENS = 32
STEADY = ("oracle", "greedy", "one", "wrong", "wrong_one", "ragged", "nothing", "ten_thousand")
# A breaker opens on these, so every combination gets one of its own.
FAILING = (
    *("raising", "raising_everywhere", "raising_async", "sleeping_async", "sleeping_blocking"),
    *("negative", "beyond", "nonsense"),
)
NUM_COMBINATIONS = len(SAMPLING) * len(CROWDS)
COUNTED = NUM_COMBINATIONS  # number of the instances that only the tests of counts use
LOADED = [
    "ngram",
    *(spec(kind) for kind in STEADY),
    *(spec(kind, COUNTED) for kind in STEADY),
    *(spec(kind, number) for kind in FAILING for number in range(NUM_COMBINATIONS + 1)),
]
NEIGHBOURS = ("ngram", spec("oracle"), None, spec("ragged"), spec("wrong"))


@dataclass
class Law:
    """A daemon with all drafters, and its plain runs by (prompt, sampling)."""

    daemon: Daemon
    recording: Path
    kernels: str
    plain: dict[tuple[int, str], tuple[int, ...]] = field(default_factory=dict)

    async def record(self, client: Client) -> None:
        """Make the plain runs, once, and the file for the drafters."""
        if self.plain:
            return
        assert (await client.server_info()).kernels == self.kernels
        texts = []
        for index, prompt in enumerate(PROMPTS):
            for sampling in SAMPLING:
                run = await answer(client, prompt, **_options(index, sampling, None))
                assert run.speculation.total.draft_tokens == 0
                self.plain[index, sampling] = run.token_ids
                texts.append([*await tokenized(client, prompt), *run.token_ids])
        self.recording.write_text(json.dumps(texts))


def _options(index: int, sampling: str, drafter: str | None) -> dict[str, Any]:
    options = {"seed": 1000 + index, "max_new_tokens": NUM_TOKENS, "ignore_eos": index % 2 == 0}
    if drafter is None:
        return options | SAMPLING[sampling] | {"speculation": False}
    return options | SAMPLING[sampling] | {"drafters": [drafter]}


@contextmanager
def _law(toy: Path, folder: Path, kernels: str, *flags: str) -> Iterator[Law]:
    recording = folder / "recording.json"
    drafters = [part for name in LOADED for part in ("--drafter", name)]
    with daemon_process(
        toy,
        *(*drafters, *flags),
        env={RECORDING: str(recording)},
        cwd=Path(__file__).parent,
        with_failing_drafters=True,
    ) as daemon:
        yield Law(daemon, recording, kernels)


@pytest.fixture(scope="module")
def law(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Law]:
    fastest = (*library.supported(), "torch")[0]
    with _law(toy, tmp_path_factory.mktemp("law"), fastest) as law:
        yield law


@pytest.fixture(scope="module")
def torch_law(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Law]:
    with _law(toy, tmp_path_factory.mktemp("law"), "torch", "--kernels", "torch") as law:
        yield law


@pytest.mark.parametrize("crowd", CROWDS)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("kind", [None, "ngram", *STEADY, *FAILING])
@pytest.mark.asyncio
async def test_no_drafter_and_no_neighbour_changes_a_token(
    law: Law, kind: str | None, sampling: str, crowd: int
) -> None:
    await _check_tokens(law, kind, sampling, crowd)


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("kind", [None, "ngram", "oracle", "wrong", "ragged", "raising"])
@pytest.mark.asyncio
async def test_nor_does_any_in_torch(torch_law: Law, kind: str | None, sampling: str) -> None:
    await _check_tokens(torch_law, kind, sampling, CROWDS[-1])


async def _check_tokens(law: Law, kind: str | None, sampling: str, crowd: int) -> None:
    """Run one combination with its neighbours, and compare all of them with the plain runs."""
    number = list(SAMPLING).index(sampling) * len(CROWDS) + CROWDS.index(crowd)
    drafter = spec(kind, number if kind in FAILING else 0) if kind not in {None, "ngram"} else kind
    cases = [(0, sampling, drafter)]
    for place in range(crowd):
        mode = list(SAMPLING)[place % 2]
        cases.append((place % len(PROMPTS), mode, NEIGHBOURS[place % len(NEIGHBOURS)]))
    async with Client(law.daemon.address) as client:
        await law.record(client)
        runs = await asyncio.gather(
            *(answer(client, PROMPTS[index], **_options(index, mode, name))
              for index, mode, name in cases)
        )  # fmt: skip
    for (index, mode, _), run in zip(cases, runs, strict=True):
        assert run.token_ids == law.plain[index, mode]
        check_sums(run)


async def _counted(law: Law, kind: str, **options: Any) -> tuple[Any, Any]:
    """A greedy run with a drafter that nobody else uses: its own counts and the daemon's."""
    name = spec(kind, COUNTED)
    async with Client(law.daemon.address) as client:
        await law.record(client)
        chosen = _options(0, "greedy", name) | {"draft_budget_s": 0.5} | options
        run = await answer(client, PROMPTS[0], **chosen)
        check_sums(run)
        return run.speculation, await drafter_stats(client, name)


@pytest.mark.asyncio
async def test_an_oracle_is_always_accepted_and_counted_so(law: Law) -> None:
    speculation, stats = await _counted(law, "oracle")
    total = speculation.total
    assert total.accepted_draft_tokens == total.draft_tokens > NUM_TOKENS // 2
    assert (stats.draft_tokens, stats.accepted) == (total.draft_tokens, total.draft_tokens)
    assert (total.late, total.faults, stats.faults) == (0, 0, 0)


@pytest.mark.asyncio
async def test_one_right_token_a_step_is_an_acceptance_of_one(law: Law) -> None:
    speculation, stats = await _counted(law, "one")
    total = speculation.total
    # Two tokens a step, but for the first and the last, which nobody drafts.
    assert total.draft_tokens == total.accepted_draft_tokens == total.verify_steps - 2
    assert total.verify_steps == 2 + (NUM_TOKENS - 2) // 2
    assert stats.draft_tokens == stats.accepted == total.draft_tokens


@pytest.mark.parametrize("kind", ["wrong", "wrong_one"])
@pytest.mark.asyncio
async def test_a_wrong_drafter_is_never_accepted(law: Law, kind: str) -> None:
    speculation, stats = await _counted(law, kind)
    assert speculation.total.accepted_draft_tokens == stats.accepted == 0
    assert speculation.total.verify_steps == NUM_TOKENS
    assert speculation.total.draft_tokens >= NUM_TOKENS - 2
    assert stats.draft_tokens == speculation.total.draft_tokens


@pytest.mark.asyncio
async def test_ten_thousand_tokens_count_as_what_was_verified(law: Law) -> None:
    speculation, stats = await _counted(law, "ten_thousand", max_draft_tokens=3)
    total = speculation.total
    assert 0 < total.draft_tokens <= 3 * total.verify_steps
    assert stats.draft_tokens == total.draft_tokens
    assert stats.faults == total.faults == 0


@pytest.mark.parametrize("kind", ["raising", "raising_async", "negative", "beyond", "nonsense"])
@pytest.mark.asyncio
async def test_faults_are_counted_until_the_breaker_opens(law: Law, kind: str) -> None:
    speculation, stats = await _counted(law, kind)
    # Three open it; more only where the run lasted longer than the breaker's first second.
    assert 3 <= speculation.total.faults <= 6
    assert speculation.by_drafter[spec(kind, COUNTED)].faults == speculation.total.faults
    assert stats.faults == speculation.total.faults
    assert stats.breaker_open
    assert speculation.total.late == 0
    # An id beyond the vocabulary costs itself and what follows, not the legal one before it.
    assert (speculation.total.draft_tokens > 0) is (kind == "beyond")


@pytest.mark.parametrize("kind", ["sleeping_async", "sleeping_blocking"])
@pytest.mark.asyncio
async def test_late_drafts_are_counted_and_waited_for_no_longer_than_granted(
    law: Law, kind: str
) -> None:
    speculation, stats = await _counted(law, kind, draft_budget_s=0.01)
    assert 3 <= speculation.total.late <= 6
    assert stats.late == speculation.total.late
    assert stats.breaker_open
    assert speculation.total.draft_tokens == 0
    assert speculation.total.draft_time_s < 0.5


@pytest.mark.asyncio
async def test_a_drafter_that_fails_in_begin_is_not_asked(law: Law) -> None:
    speculation, stats = await _counted(law, "raising_everywhere")
    assert stats.faults >= 1
    assert speculation.total.draft_tokens == 0


@pytest.mark.asyncio
async def test_empty_answers_are_counted_and_are_no_fault(law: Law) -> None:
    speculation, stats = await _counted(law, "nothing")
    assert stats.empty == stats.calls >= NUM_TOKENS - 2
    assert not stats.breaker_open
    assert (speculation.total.draft_tokens, speculation.total.faults) == (0, 0)
