"""Too little memory, poisoned weights and odd shapes: what breaks, breaks alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client, InternalError, WrongState

from benchmarks.toy_gguf import build_toy_model
from tests.e2e.calls import PROMPT, PROMPTS, answer, check_sums, quiet
from tests.e2e.drafters_under_test import spec
from tests.support.daemon import Daemon, daemon_process, running_daemon

# Of the standard toy: 2 layers, 32 positions, K and V of 2 heads with 32 bf16 values.
PAGE_BYTES = 2 * 32 * 2 * 2 * 32 * 2
NUM_PAGES = 8
POISON = 300


@pytest.fixture(scope="module")
def tight_daemon(toy: Path) -> Iterator[Daemon]:
    """Eight pages for all, and the two that nobody gets: 256 positions."""
    memory = str((NUM_PAGES + 2) * PAGE_BYTES)
    with daemon_process(toy, "--kv-memory", memory, "--max-step-tokens", "64") as daemon:
        yield daemon


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3}])
@pytest.mark.asyncio
async def test_requests_that_take_each_other_s_pages_get_their_solo_tokens(
    tight_daemon: Daemon, sampling: dict[str, Any]
) -> None:
    options = sampling | {"max_new_tokens": 70, "ignore_eos": True}
    async with Client(tight_daemon.address) as client:
        total = (await client.server_info()).counters.pages_total
        assert total == NUM_PAGES
        solo = [await answer(client, text, speculation=False, **options) for text in PROMPTS[:5]]
        before = (await client.server_info()).counters.real_positions
        runs = await asyncio.gather(
            *(answer(client, text, **options) for _ in range(2) for text in PROMPTS[:5])
        )
        after = (await client.server_info()).counters.real_positions
        for run, alone in zip(runs, solo * 2, strict=True):
            assert run.token_ids == alone.token_ids
            assert run.text == alone.text
            check_sums(run)
        needed = sum(run.usage.prompt_tokens + 69 + run.speculation.total.draft_tokens -
                     run.speculation.total.accepted_draft_tokens for run in runs)  # fmt: skip
        assert after - before > needed, "somebody was preempted and computed again"
        await quiet(client)


@pytest.mark.asyncio
async def test_a_request_that_outgrows_the_pool_fails_alone_and_says_why(
    tight_daemon: Daemon,
) -> None:
    async with Client(tight_daemon.address) as client:
        short = answer(client, temperature=0, max_new_tokens=40, ignore_eos=True)
        long = answer(client, [65] * 200, max_new_tokens=200, ignore_eos=True)
        fine, failed = await asyncio.gather(short, long, return_exceptions=True)
        assert not isinstance(fine, BaseException)
        assert isinstance(failed, WrongState)
        assert (failed.reason, "--kv-memory" in failed.message) == ("OUT_OF_PAGES", True)
        alone = await answer(client, temperature=0, max_new_tokens=40, ignore_eos=True)
        assert fine.token_ids == alone.token_ids
        await quiet(client)


@pytest.mark.asyncio
async def test_a_prompt_larger_than_the_pool_is_refused(tight_daemon: Daemon) -> None:
    async with Client(tight_daemon.address) as client:
        with pytest.raises(WrongState) as refused:
            await answer(client, [65] * 32 * NUM_PAGES, max_new_tokens=1)
        assert "pool holds 256" in refused.value.message


@pytest.mark.asyncio
async def test_nan_logits_end_their_own_request_and_no_other(models: Path) -> None:
    path = models / "poisoned.gguf"
    build_toy_model(path, tied=False, nan_rows=[POISON])
    greedy: dict[str, Any] = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}
    async with running_daemon(path) as daemon:
        async with Client(daemon.address) as client:
            plain = await answer(client, speculation=False, **greedy)
            assert POISON not in plain.token_ids

            async def poisoned() -> None:
                with pytest.raises(InternalError) as failed:
                    await answer(client, [1, POISON, 2], **greedy)
                assert failed.value.reason == "NON_FINITE_LOGITS"

            runs = await asyncio.gather(
                *(answer(client, **greedy) for _ in range(3)), *(poisoned() for _ in range(3))
            )
            later = await answer(client, **greedy)
            assert {run.token_ids for run in (*runs[:3], later)} == {plain.token_ids}
            await quiet(client)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_a_large_pool_costs_memory_only_as_it_is_used(models: Path) -> None:
    path = models / "wide.gguf"
    build_toy_model(path, context_length=16_384)
    # 256 requests of 16,384 positions: 2 GiB, several times what the daemon takes without them.
    with daemon_process(path, "--kv-memory", "2G", "--max-rows", "256") as daemon:
        resident = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * 4096
    assert resident < 3 << 29


@pytest.fixture(scope="module")
def odd_daemon(odd_toy: Path) -> Iterator[Daemon]:
    flags = ("--drafter", "ngram", "--drafter", spec("ten_thousand"), "--max-draft-tokens", "15")
    with daemon_process(odd_toy, *flags, cwd=Path(__file__).parent) as daemon:
        yield daemon


@pytest.mark.asyncio
async def test_sixteen_at_once_on_four_bit_weights_equal_their_solo_plain_runs(
    odd_daemon: Daemon,
) -> None:
    def options(index: int) -> dict[str, Any]:
        sampling = {"temperature": 0.0} if index % 2 else {"temperature": 0.8, "seed": index}
        return sampling | {"max_new_tokens": 60, "ignore_eos": True}

    async with Client(odd_daemon.address) as client:
        info = await client.server_info()
        assert info.limits.vocab_size == 1021
        prompts = [PROMPTS[index % len(PROMPTS)] for index in range(16)]
        solo = [
            await answer(client, prompt, speculation=False, **options(index))
            for index, prompt in enumerate(prompts)
        ]
        runs = await asyncio.gather(
            *(answer(client, prompt, **options(index)) for index, prompt in enumerate(prompts))
        )
        for run, alone in zip(runs, solo, strict=True):
            assert run.token_ids == alone.token_ids
            check_sums(run)


@pytest.mark.asyncio
async def test_no_id_beyond_an_odd_vocabulary_is_ever_streamed(odd_daemon: Daemon) -> None:
    wrong = {"drafters": [spec("ten_thousand")], "draft_budget_s": 0.05}
    flat: dict[str, Any] = {"temperature": 50, "ignore_eos": True}  # nearly uniform
    async with Client(odd_daemon.address) as client:
        runs = await asyncio.gather(
            *(answer(client, PROMPT, seed=seed, **flat, **wrong) for seed in range(6)),
            *(answer(client, PROMPT, seed=seed, top_k=1, **flat, **wrong) for seed in range(2)),
        )
    seen = {token for run in runs for token in run.token_ids}
    assert max(seen) < 1021
    assert len(seen) > 900
