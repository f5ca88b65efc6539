"""What runs in the next step. Pure: reads requests and counts of pages, changes nothing.

One budget of positions per step is shared: every request that is one token behind comes first, then
drafts, then prompt chunks, so nobody's answer waits behind a long prompt; while prompts wait,
drafts take at most half of the budget. Pages decide who may stay: when they run out, the youngest
request is preempted (its pages are dropped and recomputed later), and a request that is alone and
still does not fit fails alone.
Invariant: a plan never needs more pages or positions than there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specd.engine.request import Request
from specd.kv.pages import PAGE_SIZE, pages_for

# Prompt positions of a step whose log probabilities are wanted. Each has a row of logits: at
# 151,936 entries 0.6 MB and a millisecond or two, which every row of the step waits for.
MAX_SCORED = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """max_rows: requests in a step. max_positions: tokens and drafts of a step together."""

    max_rows: int
    max_positions: int

    def __post_init__(self) -> None:
        if not 1 <= self.max_rows <= self.max_positions:
            raise ValueError(
                f"{self.max_rows} rows need at least as many positions, not {self.max_positions}"
            )


@dataclass(frozen=True, slots=True)
class Share:
    """A request's part of a step: `count` known tokens from `computed` on, `allowance` drafts."""

    request: Request
    count: int
    allowance: int


@dataclass(frozen=True, slots=True)
class Plan:
    """shares: rows in order of admission. admitted, preempted, failed: who changes state first."""

    shares: tuple[Share, ...] = ()
    admitted: tuple[Request, ...] = ()
    preempted: tuple[Request, ...] = ()
    failed: tuple[Request, ...] = ()


@dataclass(slots=True)
class _Pages:
    """A running count of free pages while a plan is made."""

    free: int


def _missing(request: Request, num_positions: int) -> int:
    return max(0, pages_for(num_positions) - len(request.pages))


def plan(
    running: Sequence[Request], waiting: Sequence[Request], free_pages: int, limits: Limits
) -> Plan:
    """Plan one step; `running` and `waiting` are in order of admission and of arrival."""
    pages = _Pages(free_pages)
    staying, preempted, failed = _fit(list(running), pages)
    admitted = [] if preempted or failed else _admit(staying, waiting, pages, limits)
    if waiting and not (staying or admitted or preempted or failed):
        failed = [waiting[0]]  # the whole pool is free, and still too small for it
    everyone = staying + admitted
    counts, left = _tokens(everyone, limits.max_positions)
    allowances = _drafts(everyone, counts, left, pages)
    counts = _more_prompt(everyone, counts, left - sum(allowances))
    shares = zip(everyone, counts, allowances, strict=True)
    return Plan(
        shares=tuple(Share(*share) for share in shares if share[1] > 0),
        admitted=tuple(admitted),
        preempted=tuple(preempted),
        failed=tuple(failed),
    )


def _fit(
    running: list[Request], pages: _Pages
) -> tuple[list[Request], list[Request], list[Request]]:
    """Reserve pages for the known tokens of everyone, preempting from the young end."""
    staying: list[Request] = []
    preempted: list[Request] = []
    while running:
        request = running.pop(0)
        needed = _missing(request, request.known)
        while needed > pages.free and running:
            victim = running.pop()
            pages.free += len(victim.pages)
            preempted.append(victim)
        if needed <= pages.free:
            pages.free -= needed
            staying.append(request)
        elif staying:  # it is the youngest itself: it waits for the older ones
            pages.free += len(request.pages)
            preempted.append(request)
        else:
            pages.free += len(request.pages)
            return [], preempted, [request]
    return staying, preempted, []


def _admit(
    staying: Sequence[Request], waiting: Sequence[Request], pages: _Pages, limits: Limits
) -> list[Request]:
    """Take from the front of the queue while rows and pages last; nobody overtakes."""
    admitted: list[Request] = []
    for request in waiting:
        needed = _missing(request, request.known + 1)
        if len(staying) + len(admitted) == limits.max_rows or needed > pages.free:
            break
        pages.free -= needed
        admitted.append(request)
    return admitted


def _tokens(requests: Sequence[Request], budget: int) -> tuple[list[int], int]:
    """One token for everybody who is one behind; returns counts and what is left."""
    counts = [1 if request.pending == 1 else 0 for request in requests]
    return counts, budget - sum(counts)


def _drafts(
    requests: Sequence[Request], counts: Sequence[int], left: int, pages: _Pages
) -> list[int]:
    """Split the budget for drafts evenly over the rows that may draft."""
    askers = [request for request in requests if request.drafting]
    if not askers:
        return [0] * len(requests)
    prompts_wait = any(count == 0 for count in counts)
    each = (left // 2 if prompts_wait else left) // len(askers)
    return [_allowance(request, each, pages) if request.drafting else 0 for request in requests]


def _allowance(request: Request, share: int, pages: _Pages) -> int:
    """Draft tokens that are usable: asked for, before the length limit, and covered by pages."""
    # The last token of a run is the target's own, so a draft is one shorter than what is left.
    wanted = min(request.params.speculation.max_draft_tokens, request.output.tokens_left - 1, share)
    if not request.params.speculation.drafters or wanted <= 0:
        return 0
    owned = max(len(request.pages), pages_for(request.known)) * PAGE_SIZE
    usable = min(wanted, owned + pages.free * PAGE_SIZE - request.known)
    beyond = request.known + usable - owned
    pages.free -= pages_for(beyond) if beyond > 0 else 0
    return usable


def _more_prompt(requests: Sequence[Request], counts: Sequence[int], left: int) -> list[int]:
    """Give what is left to the prompts, oldest first."""
    given = list(counts)
    scores_left = MAX_SCORED
    for index, request in enumerate(requests):
        if given[index] > 0:
            continue
        given[index] = min(request.pending, left)
        if request.scoring:
            given[index] = min(given[index], scores_left)
            scores_left -= given[index]
        left -= given[index]
    return given
