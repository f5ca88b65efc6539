"""Processors: compared to the bit with one token at a time, in scalars of numpy."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.device.processors import RowProcessors, changes_logits
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, PaddedRow
from tests.unit.device.batches import ReadyMasks, mask_words, one_row_batch, seen_tokens

F32 = npt.NDArray[np.float32]
VOCAB = 37  # more than a word of a mask, and no multiple of anything


def row_of(choosing: Choosing, draft: Sequence[int] = ()) -> PaddedRow:
    return one_row_batch(last_position=9, draft=draft, choosing=choosing).rows[0]


def processed(logits: F32, choosing: Choosing, draft: Sequence[int] = (), index: int = 0) -> F32:
    return RowProcessors(row_of(choosing, draft), len(logits)).apply(logits, index)


def slowly_processed(
    logits: F32,
    params: SamplingParams,
    prompt: Collection[int],
    answer: Sequence[int],
    banned: Collection[int],
) -> list[np.float32]:
    """The order of the documentation, token by token."""
    bias = dict(params.logit_bias)
    found = []
    for token, value in enumerate(logits):
        count = list(answer).count(token)
        if token in prompt or count:
            repetition = np.float32(params.repetition_penalty)
            value = value / repetition if value > 0 else value * repetition
        if count:
            value = value - np.float32(params.frequency_penalty) * np.float32(count)
            value = value - np.float32(params.presence_penalty)
        if token in bias:
            value = value + np.float32(bias[token])
        found.append(np.float32(-np.inf) if token in banned else value)
    return found


tokens = st.lists(st.integers(0, VOCAB - 1), max_size=12)
penalties = st.floats(-2, 2, width=32)
values = st.one_of(
    st.floats(-60, 60, width=32), st.sampled_from([0.0, -0.0, -np.inf, 1e-38, 3e38, -3e38])
)


@st.composite
def samplings(draw: st.DrawFn) -> SamplingParams:
    bias = draw(st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32)))
    return SamplingParams(
        repetition_penalty=draw(st.floats(0.125, 4, width=32)),
        presence_penalty=draw(penalties),
        frequency_penalty=draw(penalties),
        logit_bias=tuple(sorted(bias.items())),
    )


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(values, min_size=VOCAB, max_size=VOCAB),
    params=samplings(),
    prompt=tokens,
    answer=tokens,
    draft=tokens,
    banned=tokens,
    num_banned=st.integers(0, 5),
    forbidden=st.none() | tokens,
)
def test_every_position_is_what_one_token_at_a_time_gives(
    logits: list[float],
    params: SamplingParams,
    prompt: list[int],
    answer: list[int],
    draft: list[int],
    banned: list[int],
    num_banned: int,
    forbidden: list[int] | None,
) -> None:
    row, positions = np.array(logits, np.float32), len(draft) + 1
    row.flags.writeable = False
    allowed = [set(range(VOCAB)) - {*(forbidden or ()), index} for index in range(positions)]
    masks = None if forbidden is None else ReadyMasks(mask_words(allowed, VOCAB))
    seen = seen_tokens(prompt, answer)
    choosing = Choosing(params, seen, tuple(banned), num_banned, masks=masks)
    processors = RowProcessors(row_of(choosing, draft), VOCAB)
    for index in range(positions):
        gone = set(banned) if index < num_banned else set()
        gone |= set(range(VOCAB)) - allowed[index] if masks else set()
        with np.errstate(over="ignore"):
            slow = slowly_processed(row, params, prompt, [*answer, *draft[:index]], gone)
        assert np.array_equal(processors.apply(row, index), slow)


# --- single promises ---


def flat(value: float = 0.0, vocab: int = VOCAB) -> F32:
    return np.full(vocab, value, np.float32)


def test_a_position_sees_the_draft_before_it_and_nothing_behind() -> None:
    params = SamplingParams(frequency_penalty=1.0)
    choosing = Choosing(params, seen_tokens([1, 2], [2, 3]))
    lowered = [
        {token: -value for token, value in enumerate(found.tolist()) if value}
        for found in (processed(flat(), choosing, (3, 9, 9, 3), index) for index in range(5))
    ]
    assert lowered == [
        {2: 1, 3: 1},
        {2: 1, 3: 2},
        {2: 1, 3: 2, 9: 1},
        {2: 1, 3: 2, 9: 2},
        {2: 1, 3: 3, 9: 2},
    ]


def test_presence_counts_a_token_once_and_the_prompt_not_at_all() -> None:
    choosing = Choosing(SamplingParams(presence_penalty=0.5), seen_tokens([1], [2, 2, 2]))
    found = processed(flat(), choosing, (4, 4), 2)
    assert found.nonzero()[0].tolist() == [2, 4] and set(found[[2, 4]].tolist()) == {-0.5}


def test_repetition_looks_at_prompt_answer_and_draft() -> None:
    choosing = Choosing(SamplingParams(repetition_penalty=2.0), seen_tokens([1], [2]))
    assert processed(flat(4.0), choosing, (3,), 1)[:5].tolist() == [4.0, 2.0, 2.0, 2.0, 4.0]
    assert processed(flat(-4.0), choosing, (3,), 0)[:5].tolist() == [-4.0, -8.0, -8.0, -4.0, -4.0]


def test_a_rejected_draft_leaves_no_trace() -> None:
    """`seen_tokens` cannot be written, so what a step counts dies with it."""
    choosing = Choosing(SamplingParams(presence_penalty=2.0), seen_tokens([1], [2]))
    before = processed(flat(), choosing)
    processed(flat(), choosing, (7, 7, 7), 3)
    assert np.array_equal(processed(flat(), choosing), before)


def test_a_bias_means_what_it_says_whatever_the_penalties_did() -> None:
    params = SamplingParams(repetition_penalty=10.0, logit_bias=((3, 5.0),))
    found = processed(flat(2.0), Choosing(params, seen_tokens([3], [])))
    assert found[3] == np.float32(2) / np.float32(10) + np.float32(5)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 8193])
def test_the_last_id_of_a_vocabulary_can_be_biased_banned_and_forbidden(vocab: int) -> None:
    last = vocab - 1
    biased = Choosing(SamplingParams(logit_bias=((last, 7.0),)))
    assert processed(flat(vocab=vocab), biased).tolist() == [0.0] * last + [7.0]
    banned = Choosing(SamplingParams(), banned=(last,), num_banned=1)
    assert processed(flat(vocab=vocab), banned).tolist() == [0.0] * last + [-np.inf]
    masks = ReadyMasks(mask_words([range(last)], vocab))
    found = processed(flat(vocab=vocab), Choosing(SamplingParams(), masks=masks))
    assert found.tolist() == [0.0] * last + [-np.inf]


def test_no_bias_and_no_penalty_brings_a_banned_token_back() -> None:
    params = SamplingParams(
        repetition_penalty=0.01, frequency_penalty=-2.0, logit_bias=((3, 1e30), (4, 1e30))
    )
    masks = ReadyMasks(mask_words([{3, 5}], VOCAB))
    choosing = Choosing(params, seen_tokens([3], [4]), banned=(3,), num_banned=1, masks=masks)
    assert np.isfinite(processed(flat(1.0), choosing)).nonzero()[0].tolist() == [5]


def test_tokens_are_banned_at_the_first_positions_only() -> None:
    choosing = Choosing(SamplingParams(), banned=(3, 5), num_banned=2)
    gone = [np.isneginf(processed(flat(), choosing, (1, 1, 1), index)).sum() for index in range(4)]
    assert gone == [2, 2, 0, 0]


def test_a_row_without_processors_says_so() -> None:
    assert not changes_logits(Choosing(SamplingParams(temperature=2.0, top_k=3, min_p=0.5)))
    assert not changes_logits(Choosing(SamplingParams(), banned=(3,), num_banned=0))
    assert not changes_logits(Choosing(SamplingParams(), banned=(), num_banned=4))
    assert changes_logits(Choosing(SamplingParams(), banned=(3,), num_banned=1))
    assert changes_logits(Choosing(SamplingParams(), masks=ReadyMasks(mask_words([{1}], 4))))
    assert changes_logits(Choosing(SamplingParams(logit_bias=((0, 0.0),))))


@pytest.mark.parametrize(
    "words",
    [
        mask_words([{1}], VOCAB),
        mask_words([{1}] * 3, VOCAB),
        mask_words([{1}] * 2, 65),
        mask_words([{1}] * 2, VOCAB).astype(np.uint64),
        mask_words([{1}] * 2, VOCAB)[0],
    ],
    ids=["a row short", "a row too many", "another vocabulary", "wide words", "flat"],
)
def test_masks_of_another_shape_are_refused(words: npt.NDArray[np.uint32]) -> None:
    choosing = Choosing(SamplingParams(), masks=ReadyMasks(words))
    with pytest.raises(ValueError, match="masks are"):
        RowProcessors(row_of(choosing, (1,)), VOCAB)
