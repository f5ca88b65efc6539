"""The verifier: a draft token counts if and only if the target samples it at its position.

`agrees` compares a verifier with an obvious oracle on many random steps; wrong verifiers, each a
fault that somebody shipped, are planted to know that it can tell.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specd.device.sampling import sample
from specd.device.verifier import accepted_length
from specd.engine.params import SamplingParams
from specd.engine.step_types import LayoutSpec, PaddedBatch, PaddedRow, RowFault, RowResult
from tests.unit.device.batches import (
    GREEDY,
    PACKED,
    batch_of,
    one_row_batch,
    planned,
    verified,
)

VOCAB = 4  # drafts often agree by chance
RECTANGLE = LayoutSpec((1, 2, 4, 8, 16, 32, 64), widths=(1, 2, 4, 8), row_buckets=(1, 2, 4, 8))
Results = tuple[RowResult | None, ...]
Verifier = Callable[[Tensor, PaddedBatch], Results]


def target(logits: Tensor, row: PaddedRow, index: int) -> int:
    """The target's own token at the row's sampled position number `index`."""
    position = row.first_position + row.count - row.draft_len + index
    values = logits[row.sample_offset + index]
    if row.choosing.sampling.temperature == 0:
        return max(range(VOCAB), key=lambda token: (float(values[token]), -token))
    return int(sample(values, row.choosing.sampling, position))


def oracle(logits: Tensor, batch: PaddedBatch) -> Results:
    results: list[RowResult | None] = []
    for row in batch.rows:
        if not row.samples:
            results.append(None)
            continue
        tokens = [target(logits, row, 0)]
        while len(tokens) <= row.draft_len and row.draft[len(tokens) - 1] == tokens[-1]:
            tokens.append(target(logits, row, len(tokens)))
        results.append(RowResult(len(tokens) - 1, tuple(tokens)))
    return tuple(results)


def random_step(rng: random.Random) -> tuple[Tensor, PaddedBatch]:
    rows, drafts = [], []
    for number in range(rng.randint(1, 5)):
        samples = rng.random() < 0.8
        sampling = GREEDY if rng.random() < 0.5 else SamplingParams(seed=rng.randrange(1 << 64))
        count = 1 if samples and rng.random() < 0.7 else rng.randint(2, 6)
        tokens = [rng.randrange(VOCAB) for _ in range(count)]
        rows.append(
            planned(
                tokens, rng.randrange(200), samples=samples, sampling=sampling, name=f"{number}"
            )
        )
        length = rng.randint(0, 6) if samples and count == 1 else 0
        drafts.append([rng.randrange(VOCAB) for _ in range(length)])
    batch = batch_of(rows, drafts, rng.choice([PACKED, RECTANGLE]))
    generator = torch.Generator().manual_seed(rng.randrange(1 << 32))
    # Few levels: exact ties are common.
    levels = torch.randint(0, 4, (len(batch.sample_index), VOCAB), generator=generator)
    return levels.float(), batch


def agrees(verifier: Verifier, steps: int = 300) -> bool:
    rng = random.Random(1)
    return all(
        verifier(logits, batch) == oracle(logits, batch)
        for logits, batch in (random_step(rng) for _ in range(steps))
    )


def test_the_verifier_agrees_with_the_oracle_on_random_steps() -> None:
    assert agrees(verified)


# --- planted faults ---


def with_drafts(
    change: Callable[[PaddedRow], tuple[int, ...]], logits: Tensor, batch: PaddedBatch
) -> Results:
    """The right verifier on changed drafts; rows keep as many logits as they have."""
    results: list[RowResult | None] = []
    for row in batch.rows:
        if not row.samples:
            results.append(None)
            continue
        draft = change(row)
        own = logits[row.sample_offset : row.sample_offset + row.num_samples]
        missing = max(0, len(draft) + 1 - len(own))
        own = torch.cat([own, own[-1:].expand(missing, -1)])
        moved = replace(
            row, draft=draft, sample_offset=0, count=row.count - row.draft_len + len(draft)
        )
        results.extend(oracle(own, replace(batch, rows=(moved,))))
    return tuple(results)


def off_by_one(logits: Tensor, batch: PaddedBatch) -> Results:
    """Logits of a draft token checked against the next one."""
    return verified(logits.roll(-1, 0), batch)


def first_is_free(logits: Tensor, batch: PaddedBatch) -> Results:
    """The first draft token is never verified."""
    results: list[RowResult | None] = []
    for row, right in zip(batch.rows, verified(logits, batch), strict=True):
        if right is None or not row.draft or right.accepted:
            results.append(right)
        else:
            own = (row.draft[0], target(logits, row, 1))
            results.append(RowResult(1, own))
    return tuple(results)


def accepts_pads(logits: Tensor, batch: PaddedBatch) -> Results:
    """Drafts are as long as the row's span, and pads are token 0."""
    return with_drafts(lambda row: row.draft + (0,) * (row.span - row.count), logits, batch)


def length_by_value(logits: Tensor, batch: PaddedBatch) -> Results:
    """The draft ends at the first token 0."""
    return with_drafts(
        lambda row: row.draft[: row.draft.index(0)] if 0 in row.draft else row.draft, logits, batch
    )


def accepts_token_zero(logits: Tensor, batch: PaddedBatch) -> Results:
    results: list[RowResult | None] = []
    for row, right in zip(batch.rows, verified(logits, batch), strict=True):
        if right is None or right.accepted == row.draft_len or row.draft[right.accepted] != 0:
            results.append(right)
        else:
            tokens = (*row.draft[: right.accepted + 1], target(logits, row, right.accepted + 1))
            results.append(RowResult(right.accepted + 1, tokens))
    return tuple(results)


def bonus_from_the_last_row(logits: Tensor, batch: PaddedBatch) -> Results:
    results: list[RowResult | None] = []
    for row, right in zip(batch.rows, verified(logits, batch), strict=True):
        if right is None:
            results.append(None)
        else:
            tokens = (*right.token_ids[:-1], target(logits, row, row.draft_len))
            results.append(RowResult(right.accepted, tokens))
    return tuple(results)


def counts_matches(logits: Tensor, batch: PaddedBatch) -> Results:
    """Matches behind a mismatch count too."""
    results: list[RowResult | None] = []
    for row, right in zip(batch.rows, verified(logits, batch), strict=True):
        if right is None:
            results.append(None)
            continue
        sampled = [target(logits, row, index) for index in range(row.num_samples)]
        accepted = sum(a == b for a, b in zip(row.draft, sampled, strict=False))
        results.append(RowResult(accepted, tuple(sampled[: accepted + 1])))
    return tuple(results)


def noise_of_the_row_start(logits: Tensor, batch: PaddedBatch) -> Results:
    """Every position of a row is sampled with the noise of its first."""
    rows = tuple(
        replace(row, first_position=0, count=row.draft_len + 1) if row.samples else row
        for row in batch.rows
    )
    return verified(logits, replace(batch, rows=rows))


@pytest.mark.parametrize(
    "wrong",
    [
        off_by_one,
        first_is_free,
        accepts_pads,
        length_by_value,
        accepts_token_zero,
        bonus_from_the_last_row,
        counts_matches,
        noise_of_the_row_start,
    ],
)
def test_a_wrong_verifier_is_caught(wrong: Verifier) -> None:
    assert not agrees(wrong)


# --- single promises ---


def rows_for(tokens: list[int], vocab: int = VOCAB) -> Tensor:
    """Logits whose argmax at each row is the token given."""
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocab).float()


def test_a_genuine_draft_of_token_zero_is_a_draft() -> None:
    batch = one_row_batch(last_position=9, draft=(0, 0, 0))
    assert verified(rows_for([0, 0, 2, 1]), batch) == (RowResult(2, (0, 0, 2)),)


def test_a_fully_accepted_draft_brings_one_token_more() -> None:
    batch = one_row_batch(last_position=9, draft=(3, 1))
    assert verified(rows_for([3, 1, 2]), batch) == (RowResult(2, (3, 1, 2)),)


def test_pads_of_a_rectangle_are_never_accepted() -> None:
    rows = [planned([1], 5), planned([1], 8)]
    batch = batch_of(rows, [(0,), (0, 0, 0, 0)], RECTANGLE)
    assert batch.bucket == "2x8"
    logits = rows_for([0, 0, 0, 0, 0, 0, 0])
    first, second = verified(logits, batch)
    assert first == RowResult(1, (0, 0))
    assert second == RowResult(4, (0,) * 5)


def test_rows_that_do_not_sample_have_no_result() -> None:
    batch = batch_of([planned([1, 2, 3], 0, samples=False)], [()])
    assert verified(torch.empty(0, VOCAB), batch) == (None,)


def test_a_longer_draft_is_accepted_up_to_its_first_mismatch() -> None:
    assert accepted_length((), [5]) == 0
    assert accepted_length((5, 6, 7), [5, 9, 7, 8]) == 1
    assert accepted_length((5, 6, 7), [5, 6, 7, 8]) == 3


# --- rows that are not finite ---


def sampled(temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, top_k=3, top_p=0.9, min_p=0.01, seed=2)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_row_that_is_not_finite_is_flagged_alone(
    temperature: float, bad: float, everywhere: bool
) -> None:
    rows = [planned([1], position, sampling=sampled(temperature)) for position in (3, 40, 7)]
    batch = batch_of(rows, [(), (), ()])
    logits = rows_for([1, 2, 3])
    healthy = verified(logits, batch)
    logits[1, :] = bad if everywhere else logits[1]
    logits[1, 3] = bad
    found = verified(logits, batch)
    assert found[1] == RowResult(0, (), fault=RowFault.NOT_FINITE)
    assert (found[0], found[2]) == (healthy[0], healthy[2])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_any_possible_token_is_flagged(temperature: float) -> None:
    batch = one_row_batch(last_position=3, draft=(), sampling=sampled(temperature))
    (found,) = verified(torch.full((1, VOCAB), float("-inf")), batch)
    assert found == RowResult(0, (), fault=RowFault.NOT_FINITE)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_lies_behind_a_rejected_draft_is_not_the_request_s_fault(temperature: float) -> None:
    """A drafter can never end a request, not even with a token that the model chokes on."""
    logits = rows_for([1, 2, 3]) * 100
    logits[2] = float("nan")
    batch = one_row_batch(last_position=3, draft=(1, 3), sampling=sampled(temperature))
    assert verified(logits, batch) == (RowResult(1, (1, 2)),)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_lies_behind_an_accepted_draft_is_flagged_as_without_a_draft(
    temperature: float,
) -> None:
    """The tokens before it come first: this step takes them, and the next begins with the NaN."""
    logits = rows_for([1, 2, 3]) * 100
    logits[2] = float("nan")
    sampling = sampled(temperature)
    batch = one_row_batch(last_position=3, draft=(1, 2), sampling=sampling)
    assert verified(logits, batch) == (RowResult(1, (1, 2)),)
    batch = one_row_batch(last_position=5, draft=(), sampling=sampling)
    assert verified(logits[2:], batch) == (RowResult(0, (), fault=RowFault.NOT_FINITE),)
