"""The seed decides, and nothing else: not the daemon's age, the drafter, or a request's neighbours.

What a parameter promises holds with every drafter, and each test compares with plain decoding.
Log probabilities are compared to the bit, so that a distribution that moved without moving a token
is seen as well.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client, Completion, FinishReason, InvalidRequest
from specd_client.events import TokenLogprob

from tests.e2e.calls import PROMPTS, answer
from tests.e2e.drafters_under_test import FOREIGN, RECORDING, spec
from tests.support.daemon import Daemon, daemon_process
from tests.support.plain_noise import sequence_seed_of
from tests.support.requests import EOS_ID

Options = dict[str, Any]

LOADED = ["ngram", *(spec(k) for k in ("oracle", "wrong", "ragged", "foreign", "ending"))]
TEXT = PROMPTS[2]
WARM: Options = {"temperature": 1.2, "max_new_tokens": 32, "ignore_eos": True}
GREEDY: Options = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}
SEED = 4711
# Four tokens take nearly all of the mass, so that an n-gram drafter finds much and is often wrong.
FEW: Options = {"logit_bias": dict.fromkeys(range(65, 69), 12.0)}
PLAIN: Options = {"speculation": False}


def by(drafter: str) -> Options:
    """With one drafter, which is waited for: one that was late too often would be switched off."""
    return {"drafters": [drafter], "draft_budget_s": 1}


FIRST: Options = WARM | FEW | by("ngram") | {"seed": SEED, "top_logprobs": 3}


@dataclass(frozen=True)
class Aged:
    """A daemon with drafters, and what it answered as its very first request."""

    daemon: Daemon
    recording: Path
    first: Completion

    async def with_each_drafter(
        self, client: Client, prompt: list[int] | None = None, **options: Any
    ) -> list[Completion]:
        """The plain run, and one with each drafter, all of which must equal it; in this order."""
        options = {"seed": SEED, "top_logprobs": 3} | options
        asked = prompt or await client.tokenize(TEXT)
        plain = await answer(client, asked, **PLAIN, **options)
        self.recording.write_text(json.dumps([[*asked, *plain.token_ids]]))
        runs = [plain]
        for name in LOADED:
            run = await answer(client, asked, **by(name), **options)
            assert (run.token_ids, run.logprobs) == (plain.token_ids, plain.logprobs), name
            assert run.finish_reason == plain.finish_reason, name
            runs.append(run)
        # The one that repeats what was seen may find nothing; the others always draft.
        idle = [n for n, run in zip(LOADED[1:], runs[2:], strict=True) if not _drafted(run)]
        assert not idle, (await client.server_info()).drafter_stats
        return runs


def _drafted(run: Completion) -> int:
    return run.speculation.total.draft_tokens


@pytest.fixture(scope="module")
def aged(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aged]:
    recording = tmp_path_factory.mktemp("seeds") / "recording.json"
    flags = [part for name in LOADED for part in ("--drafter", name)]
    with daemon_process(
        toy,
        *("--weights", "fp32", *flags),  # in fp32 no two logits are equal
        env={RECORDING: str(recording)},
        cwd=Path(__file__).parent,
    ) as daemon:
        yield Aged(daemon, recording, asyncio.run(_first_answer(daemon.address)))


async def _first_answer(address: str) -> Completion:
    async with Client(address) as client:
        return await answer(client, TEXT, **FIRST)


# --- seeds ---


@pytest.mark.asyncio
async def test_the_age_of_the_daemon_changes_nothing(aged: Aged) -> None:
    other = WARM | {"max_new_tokens": 6}
    async with Client(aged.daemon.address) as client:
        for start in range(0, 100, 10):
            others = (
                answer(client, PROMPTS[n % 6], **by(LOADED[n % 6]), **other | {"seed": n})
                for n in range(start, start + 10)
            )
            await asyncio.gather(*others)
        now = await answer(client, TEXT, **FIRST)
    assert (now.token_ids, now.logprobs) == (aged.first.token_ids, aged.first.logprobs)
    assert now.started.arithmetic_fingerprint == aged.first.started.arithmetic_fingerprint


@pytest.mark.asyncio
async def test_the_same_seed_gives_the_same_tokens_alone_and_among_eight(aged: Aged) -> None:
    async with Client(aged.daemon.address) as client:
        again = await answer(client, TEXT, **FIRST)
        neighbours = (
            answer(client, PROMPTS[n % 6], **by(LOADED[n % 6]), **WARM | {"seed": n})
            for n in range(7)
        )
        among, *_ = await asyncio.gather(answer(client, TEXT, **FIRST), *neighbours)
        eight = await asyncio.gather(*(answer(client, TEXT, **FIRST) for _ in range(8)))
    for run in (again, among, *eight):
        assert (run.token_ids, run.logprobs) == (aged.first.token_ids, aged.first.logprobs)
    total = aged.first.speculation.total
    assert 0 < total.accepted_draft_tokens < total.draft_tokens


@pytest.mark.asyncio
async def test_different_seeds_give_different_tokens(aged: Aged) -> None:
    seeds = [0, 1, 2, SEED, SEED + (1 << 32), 1 << 63, (1 << 64) - 1]
    async with Client(aged.daemon.address) as client:
        runs = [await answer(client, TEXT, seed=seed, **PLAIN, **WARM) for seed in seeds]
    assert len({run.token_ids for run in runs}) == len(seeds)
    assert [run.seed for run in runs] == seeds


@pytest.mark.asyncio
async def test_an_unseeded_request_tells_the_seed_that_gives_its_tokens_again(aged: Aged) -> None:
    options = WARM | FEW
    async with Client(aged.daemon.address) as client:
        runs = [await answer(client, TEXT, **by("ngram"), **options) for _ in range(5)]
        again = [await answer(client, TEXT, seed=run.seed, **PLAIN, **options) for run in runs]
    assert [run.token_ids for run in again] == [run.token_ids for run in runs]
    assert len({run.seed for run in runs}) == 5 == len({run.token_ids for run in runs})


@pytest.mark.parametrize("drafting", [PLAIN, by("ngram")], ids=["plain", "ngram"])
@pytest.mark.asyncio
async def test_each_sequence_is_a_request_of_its_own(aged: Aged, drafting: Options) -> None:
    seeds = tuple(sequence_seed_of(SEED, k) for k in range(6))
    options = WARM | FEW | drafting | {"top_logprobs": 0}
    async with Client(aged.daemon.address) as client:
        whole = await answer(client, TEXT, seed=SEED, num_sequences=6, **options)
        alone = [await answer(client, TEXT, seed=seed, **options) for seed in seeds]
        unseeded = await answer(client, TEXT, num_sequences=3, **options)
        told = unseeded.started.sequence_seeds
        told_alone = [await answer(client, TEXT, seed=seed, **options) for seed in told]
    assert whole.started.sequence_seeds == seeds
    assert [s.token_ids for s in whole.sequences] == [run.token_ids for run in alone]
    assert [s.logprobs for s in whole.sequences] == [run.logprobs for run in alone]
    assert [s.token_ids for s in unseeded.sequences] == [run.token_ids for run in told_alone]
    assert len({s.token_ids for s in whole.sequences}) == 6


# --- parameters, with every drafter ---


@pytest.mark.asyncio
async def test_penalties_hold_with_every_drafter_in_both_directions(aged: Aged) -> None:
    async with Client(aged.daemon.address) as client:
        shy, *_ = await aged.with_each_drafter(client, frequency_penalty=2, **GREEDY)
        keen, *_ = await aged.with_each_drafter(client, frequency_penalty=-2, **GREEDY)
    assert shy.text != keen.text
    assert len(set(keen.token_ids)) < len(set(shy.token_ids))


@pytest.mark.asyncio
async def test_rejected_drafts_of_a_token_do_not_penalise_it(aged: Aged) -> None:
    wanted = {"top_logprobs": 20, "logprob_basis": "PROCESSED", "logit_bias": {FOREIGN: 9}}
    options = WARM | {"temperature": 1.0, "presence_penalty": 2} | wanted
    async with Client(aged.daemon.address) as client:
        plain, *others = await aged.with_each_drafter(client, **options)
    total = others[LOADED.index(spec("foreign"))].speculation.total
    assert total.draft_tokens > total.accepted_draft_tokens + 20
    listed = [FOREIGN in {a.token_id for a in entry.alternatives} for entry in plain.logprobs]
    assert sum(listed) > 16, "its probability is to be seen after it was rejected"


@pytest.mark.asyncio
async def test_a_repetition_penalty_sees_the_prompt_with_every_drafter(aged: Aged) -> None:
    async with Client(aged.daemon.address) as client:
        first = (await answer(client, TEXT, **PLAIN, **GREEDY)).token_ids[0]
        prompt = [*range(256), first]
        plain = await answer(client, prompt, **PLAIN, **GREEDY)
        penalised, *_ = await aged.with_each_drafter(
            client, prompt, repetition_penalty=100, **GREEDY
        )
        # Answers that go on with the words of their own prompt.
        again = [*prompt, *plain.token_ids]
        mildly, *_ = await aged.with_each_drafter(client, again, repetition_penalty=1.3, **GREEDY)
        freely, *_ = await aged.with_each_drafter(client, again, **GREEDY)
    assert set(plain.token_ids) & set(prompt)
    assert not set(penalised.token_ids) & set(prompt)
    assert mildly.token_ids != freely.token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.asyncio
async def test_no_draft_brings_an_end_before_its_time(aged: Aged, temperature: float) -> None:
    options: Options = {"temperature": temperature, "max_new_tokens": 32, "min_new_tokens": 10}
    async with Client(aged.daemon.address) as client:
        runs = await aged.with_each_drafter(client, logit_bias={EOS_ID: 30}, **options)
    for run in runs:
        assert EOS_ID not in run.token_ids[:10]
        assert (run.token_ids[10:], run.finish_reason) == ((EOS_ID,), FinishReason.EOS_TOKEN)
    drafted = runs[1 + LOADED.index(spec("ending"))].speculation.total
    assert drafted.draft_tokens > drafted.accepted_draft_tokens


@pytest.mark.asyncio
async def test_the_last_id_of_the_vocabulary_can_be_forced_with_every_drafter(aged: Aged) -> None:
    async with Client(aged.daemon.address) as client:
        plain, *_ = await aged.with_each_drafter(
            client, logit_bias={EOS_ID: 1000}, min_new_tokens=5, **GREEDY
        )
    assert plain.token_ids == (EOS_ID,) * 32


@pytest.mark.asyncio
async def test_a_temperature_of_next_to_nothing_is_greedy_with_every_drafter(aged: Aged) -> None:
    async with Client(aged.daemon.address) as client:
        greedy = await answer(client, TEXT, **PLAIN, **GREEDY)
        cold, *_ = await aged.with_each_drafter(client, **GREEDY | {"temperature": 1e-12})
    assert cold.token_ids == greedy.token_ids


@pytest.mark.parametrize("temperature", [-1.0, math.nan, math.inf, -math.inf])
@pytest.mark.asyncio
async def test_a_temperature_that_is_none_is_refused(aged: Aged, temperature: float) -> None:
    async with Client(aged.daemon.address) as client:
        with pytest.raises(InvalidRequest) as refused:
            await answer(client, TEXT, temperature=temperature)
    assert "sampling.temperature" in str(refused.value)


@pytest.mark.asyncio
async def test_every_drafter_leaves_sampling_as_varied_as_it_is(aged: Aged) -> None:
    hot = WARM | {"temperature": 1.5}
    async with Client(aged.daemon.address) as client:
        names = [stats.name for stats in (await client.server_info()).drafter_stats]
        assert {*LOADED} < {*names}, "and what the daemon has by itself"
        for name in names:
            runs = await asyncio.gather(
                *(answer(client, TEXT, seed=seed, **by(name), **hot) for seed in range(10))
            )
            assert len({run.text for run in runs}) > 1, name


@pytest.mark.asyncio
async def test_top_k_of_one_is_greedy_with_every_drafter(aged: Aged) -> None:
    async with Client(aged.daemon.address) as client:
        greedy = await answer(client, TEXT, **PLAIN, **GREEDY)
        hot, *_ = await aged.with_each_drafter(client, **GREEDY | {"temperature": 2, "top_k": 1})
    assert hot.token_ids == greedy.token_ids


def mass_above(entry: TokenLogprob) -> float:
    """The probability of all tokens that are more probable than the one that was chosen."""
    assert entry.logprob is not None and entry.rank is not None
    assert entry.rank <= len(entry.alternatives)
    return sum(math.exp(a.logprob) for a in entry.alternatives if a.logprob > entry.logprob)


@pytest.mark.parametrize("top_p", [0.1, 0.5])
@pytest.mark.asyncio
async def test_no_drafter_brings_a_token_from_outside_the_nucleus(aged: Aged, top_p: float) -> None:
    options = WARM | {"temperature": 1.0, "top_logprobs": 20}
    async with Client(aged.daemon.address) as client:
        runs = await aged.with_each_drafter(client, top_p=top_p, **options)
        whole = await answer(client, TEXT, seed=SEED, top_k=20, **PLAIN, **options)
    # The nucleus is the smallest head with that mass, so what is above its last token is less.
    for run in runs:
        assert max(map(mass_above, run.logprobs)) < top_p
    assert max(map(mass_above, whole.logprobs)) > top_p, "else there is no outside"
    assert top_p < 0.5 or {entry.rank for entry in runs[0].logprobs} > {1}
