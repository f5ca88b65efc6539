"""What a request becomes in a step, and what a step becomes for its request.

Functions of one request each, used by the loop; they know nothing of batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specd.engine.drafting import DraftAsk
from specd.engine.events import Delta, SpeculationStep
from specd.engine.output import Ending
from specd.engine.request import Request
from specd.engine.scheduler import Share
from specd.engine.step_types import Choosing, PaddedRow, PlannedRow, RowFault, RowResult
from specd.engine.token_counts import TokenCounts
from specd.errors import NonFiniteLogits, RequestFailed, StructureFailed


def ask(share: Share) -> DraftAsk:
    """The question to the drafters of a row."""
    request = share.request
    speculation = request.params.speculation
    return DraftAsk(
        request_id=request.request_id,
        tokens=request.tokens,
        budget=share.allowance,
        drafters=speculation.drafters,
        grant_s=speculation.draft_budget_s,
    )


def planned_row(share: Share, draft: tuple[int, ...] = ()) -> PlannedRow:
    """The tokens that a running request computes in this step, before `draft`.

    Masks of a structure begin to be computed.
    """
    request = share.request
    end = request.computed + share.count
    assert request.slot is not None
    samples = end == request.known
    return PlannedRow(
        request_id=request.request_id,
        slot=request.slot,
        tokens=tuple(request.tokens[request.computed : end]),
        first_position=request.computed,
        samples=samples,
        choosing=_choosing(request, draft) if samples else request.choosing,
        score_targets=_score_targets(request, end) if request.scoring else (),
        score_top=request.params.output.prompt_logprobs or 0,
    )


def _choosing(request: Request, draft: tuple[int, ...]) -> Choosing:
    """How the next tokens are chosen, from all that is known now."""
    if not request.choosing_changes:
        return request.choosing
    if request.counts is None and request.params.sampling.penalises:
        request.counts = TokenCounts(request.tokens)
    return replace(
        request.choosing,
        seen=None if request.counts is None else request.counts.view(),
        num_banned=request.output.num_endless,
        masks=None if request.structure is None else request.structure.masks(draft),
    )


def _score_targets(request: Request, end: int) -> tuple[int, ...]:
    """The prompt tokens whose log probabilities the positions before `end` give."""
    return tuple(request.tokens[request.computed + 1 : min(end + 1, request.num_prompt_tokens)])


def push(request: Request, token_ids: Sequence[int]) -> tuple[list[int], Ending | None]:
    """Push tokens until one ends the generation; returns those that count."""
    committed = []
    for token in token_ids:
        committed.append(token)
        ending = request.output.push(token)
        if ending is not None:
            return committed, ending
    return committed, None


def delta(
    request: Request,
    row: PaddedRow,
    outcome: RowResult,
    committed: Sequence[int],
    accepted: int,
    maker: str | None,
) -> Delta:
    """One accepted run as its reader sees it; takes the text that became final."""
    step = SpeculationStep(maker if row.draft_len else None, row.draft_len, accepted)
    return Delta(
        text=request.output.take_text(),
        token_ids=tuple(committed),
        num_completion_tokens=request.output.num_tokens,
        steps=(step,),
        sequence_index=request.index,
        logprobs=outcome.logprobs[: len(committed)],
    )


def failure(request: Request, fault: RowFault) -> RequestFailed:
    """What ends a request whose row has no tokens."""
    if fault is RowFault.NO_MASK and request.structure is not None:
        return StructureFailed(request.structure.problem or "no token may follow")
    return NonFiniteLogits()
