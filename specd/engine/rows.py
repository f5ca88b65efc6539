"""What a request becomes in a step, and what a step becomes for its request.

Functions of one request each, used by the loop; they know nothing of batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from specd.engine.drafting import DraftAsk
from specd.engine.events import Delta, SpeculationStep
from specd.engine.output import Ending
from specd.engine.request import Request
from specd.engine.scheduler import Share
from specd.engine.step_types import Choosing, PaddedRow, PlannedRow


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


def planned_row(share: Share) -> PlannedRow:
    """The tokens that a running request computes in this step."""
    request = share.request
    end = request.computed + share.count
    assert request.slot is not None
    return PlannedRow(
        request_id=request.request_id,
        slot=request.slot,
        tokens=tuple(request.tokens[request.computed : end]),
        first_position=request.computed,
        samples=end == request.known,
        choosing=Choosing(request.params.sampling),
    )


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
    request: Request, row: PaddedRow, committed: Sequence[int], accepted: int, maker: str | None
) -> Delta:
    """One accepted run as its reader sees it; takes the text that became final."""
    step = SpeculationStep(maker if row.draft_len else None, row.draft_len, accepted)
    return Delta(
        text=request.output.take_text(),
        token_ids=tuple(committed),
        num_completion_tokens=request.output.num_tokens,
        steps=(step,),
    )
