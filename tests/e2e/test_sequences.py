"""Several sequences of one call in a small daemon: they wait, give way and resume like requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client, InvalidRequest

from tests.e2e.calls import answer, quiet
from tests.support.daemon import Daemon, daemon_process

# Of the standard toy: 2 layers, 32 positions, K and V of 2 heads with 32 bf16 values.
PAGE_BYTES = 2 * 32 * 2 * 2 * 32 * 2
NUM_PAGES = 6
ROWS, WAITING = 3, 4


@pytest.fixture(scope="module")
def small_daemon(toy: Path) -> Iterator[Daemon]:
    """192 positions, three rows, and four places behind them."""
    memory = str((NUM_PAGES + 2) * PAGE_BYTES)
    flags = ("--kv-memory", memory, "--max-step-tokens", "32", "--max-rows", str(ROWS))
    with daemon_process(toy, *flags, "--max-waiting", str(WAITING), "--drafter", "ngram") as daemon:
        yield daemon


@pytest.mark.asyncio
async def test_sequences_that_take_each_other_s_pages_are_what_requests_of_their_own_are(
    small_daemon: Daemon,
) -> None:
    options: dict[str, Any] = {"max_new_tokens": 70, "ignore_eos": True, "prompt_logprobs": 1}
    options |= {"frequency_penalty": 0.3, "top_logprobs": 1}
    async with Client(small_daemon.address) as client:
        several = await answer(client, num_sequences=5, seed=9, **options)
        positions = (await client.server_info()).counters.real_positions
        for sequence, seed in zip(several.sequences, several.started.sequence_seeds, strict=True):
            alone = await answer(client, seed=seed, speculation=False, **options)
            assert sequence.token_ids == alone.token_ids
            assert sequence.logprobs == alone.logprobs
            assert several.started.prompt_logprobs == alone.started.prompt_logprobs
        again = (await client.server_info()).counters.real_positions - positions
        drafts = several.speculation.total
        rejected = drafts.draft_tokens - drafts.accepted_draft_tokens
        assert positions > again + rejected, "some of them were preempted and computed again"
        await quiet(client)


@pytest.mark.asyncio
async def test_more_sequences_than_the_daemon_holds_at_once_are_refused_for_good(
    small_daemon: Daemon,
) -> None:
    async with Client(small_daemon.address) as client:
        with pytest.raises(InvalidRequest, match=f"at most {ROWS + WAITING} sequences") as refused:
            await answer(client, num_sequences=ROWS + WAITING + 1, max_new_tokens=2)
        assert refused.value.field_violations[0].field == "sampling.num_sequences"
        most = await answer(client, num_sequences=ROWS + WAITING, max_new_tokens=2)
        assert len(most.sequences) == ROWS + WAITING
