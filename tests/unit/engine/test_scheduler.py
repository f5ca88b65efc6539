"""Promises of the scheduler: single plans, and whole workloads against a real page allocator."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.engine.request import Request
from specd.engine.scheduler import Limits, Plan, plan
from specd.kv.pages import PAGE_SIZE, PageAllocator, pages_for
from tests.support.requests import make_request

LIMITS = Limits(max_rows=4, max_positions=64)
MANY_PAGES = 1000


def prompting(name: str, length: int, *, computed: int = 0) -> Request:
    """A running request whose prompt is computed up to `computed`."""
    request = make_request(name, [1] * length, max_new_tokens=100)
    request.computed = computed
    request.pages = list(range(pages_for(computed)))
    return request


def decoding(name: str, *, known: int = 10, max_new_tokens: int = 100, max_draft: int = 8,
             drafters: tuple[str, ...] = ("d",)) -> Request:  # fmt: skip
    """A running request with one answer token, that one not computed."""
    request = make_request(name, [1] * (known - 1), max_new_tokens=max_new_tokens,
                           drafters=drafters, max_draft_tokens=max_draft)  # fmt: skip
    request.output.push(97)
    request.tokens.append(97)
    request.computed = known - 1
    request.pages = list(range(pages_for(known)))
    return request


def shares_of(made: Plan) -> list[tuple[str, int, int]]:
    return [(share.request.request_id, share.count, share.allowance) for share in made.shares]


def names(requests: tuple[Request, ...]) -> list[str]:
    return [request.request_id for request in requests]


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert plan([], [], 10, LIMITS) == Plan()


def test_rows_that_are_one_behind_come_before_older_prompts() -> None:
    running = [prompting("old", 500), decoding("d", drafters=())]
    limits = Limits(max_rows=2, max_positions=2)
    assert shares_of(plan(running, [], MANY_PAGES, limits)) == [("old", 1, 0), ("d", 1, 0)]


def test_a_long_prompt_is_computed_in_chunks_of_what_is_left() -> None:
    running = [prompting("p", 500), decoding("d", drafters=())]
    assert shares_of(plan(running, [], MANY_PAGES, LIMITS)) == [("p", 63, 0), ("d", 1, 0)]


def test_the_older_of_two_prompts_is_served_first() -> None:
    running = [prompting("one", 50), prompting("two", 50), prompting("three", 50)]
    assert shares_of(plan(running, [], MANY_PAGES, LIMITS)) == [("one", 50, 0), ("two", 14, 0)]


def test_drafts_take_at_most_half_of_the_budget_while_a_prompt_waits() -> None:
    running = [decoding("d", max_draft=64), prompting("p", 500)]
    assert shares_of(plan(running, [], MANY_PAGES, LIMITS)) == [("d", 1, 31), ("p", 32, 0)]


def test_drafts_may_take_the_whole_budget_where_nobody_waits() -> None:
    running = [decoding("one", max_draft=64), decoding("two", max_draft=64)]
    assert shares_of(plan(running, [], MANY_PAGES, LIMITS)) == [("one", 1, 31), ("two", 1, 31)]


def test_no_draft_before_the_first_token() -> None:
    request = make_request("a", [1, 2], drafters=("d",))
    request.computed = 1
    request.pages = [2]
    assert shares_of(plan([request], [], MANY_PAGES, LIMITS)) == [("a", 1, 0)]


def test_no_draft_while_a_resumed_request_catches_up() -> None:
    request = decoding("a", known=40)
    request.computed, request.pages = 0, []
    assert shares_of(plan([], [request], MANY_PAGES, LIMITS)) == [("a", 40, 0)]


def test_no_draft_without_drafters() -> None:
    assert shares_of(plan([decoding("a", drafters=())], [], 9, LIMITS)) == [("a", 1, 0)]


@pytest.mark.parametrize(("new", "allowance"), [(2, 0), (3, 1), (8, 6), (10, 8), (50, 8)])
def test_a_draft_leaves_room_for_the_targets_own_token(new: int, allowance: int) -> None:
    # One answer token is out, so `new - 1` are left and the last of them is the target's own.
    made = plan([decoding("a", max_new_tokens=new)], [], MANY_PAGES, LIMITS)
    assert shares_of(made) == [("a", 1, allowance)]


def test_a_draft_leaves_room_for_the_targets_own_token_at_the_end_of_the_context() -> None:
    request = make_request("a", [1] * 9, max_new_tokens=None, context_left=4, drafters=("d",))
    request.output.push(97)
    request.tokens.append(97)
    request.computed, request.pages = 9, [2]
    assert shares_of(plan([request], [], MANY_PAGES, LIMITS)) == [("a", 1, 2)]


@pytest.mark.parametrize(("free", "allowance"), [(0, 2), (1, 8)])
def test_a_draft_fits_the_pages(free: int, allowance: int) -> None:
    running = [decoding("a", known=PAGE_SIZE - 2)]
    assert shares_of(plan(running, [], free, LIMITS)) == [("a", 1, allowance)]


def test_drafts_never_cost_another_row_its_page() -> None:
    running = [decoding("a", known=PAGE_SIZE), decoding("b", known=PAGE_SIZE + 1)]
    running[1].pages = running[1].pages[:1]
    assert shares_of(plan(running, [], 1, LIMITS)) == [("a", 1, 0), ("b", 1, 8)]


def test_the_youngest_is_preempted_when_pages_run_out() -> None:
    running = [decoding(name, known=PAGE_SIZE + 1) for name in "abc"]
    running[0].pages = [2]
    made = plan(running, [], 0, LIMITS)
    assert names(made.preempted) == ["c"]
    assert [share.request.request_id for share in made.shares] == ["a", "b"]


def test_the_youngest_that_needs_a_page_itself_waits_for_the_older_ones() -> None:
    running = [decoding("a"), decoding("b", known=PAGE_SIZE + 1)]
    running[1].pages = [2]
    made = plan(running, [], 0, LIMITS)
    assert names(made.preempted) == ["b"]
    assert made.failed == ()


def test_nobody_is_admitted_into_the_pages_of_a_preempted_request() -> None:
    running = [decoding(name, known=PAGE_SIZE + 1) for name in "ab"]
    running[0].pages = [2]
    assert plan(running, [make_request("new")], 0, LIMITS).admitted == ()


def test_a_lone_request_that_does_not_fit_fails_alone() -> None:
    request = decoding("a", known=2 * PAGE_SIZE + 1)
    request.pages = [2, 3]
    made = plan([request], [make_request("next")], 0, LIMITS)
    assert names(made.failed) == ["a"]
    assert (made.shares, made.admitted, made.preempted) == ((), (), ())


def test_a_preempted_request_that_outgrew_the_pool_fails_and_does_not_wait_for_ever() -> None:
    request = decoding("a", known=3 * PAGE_SIZE)
    request.computed, request.pages = 0, []
    made = plan([], [request, make_request("next")], 2, LIMITS)
    assert names(made.failed) == ["a"]


def test_the_queue_is_admitted_in_order_and_nobody_overtakes() -> None:
    waiting = [make_request("big", [1] * 3 * PAGE_SIZE), make_request("small")]
    made = plan([decoding("a")], waiting, 2, LIMITS)
    assert made.admitted == ()
    assert names(plan([decoding("a")], waiting, 5, LIMITS).admitted) == ["big", "small"]


def test_a_request_is_admitted_with_room_for_its_first_token() -> None:
    waiting = [make_request("a", [1] * PAGE_SIZE)]
    assert plan([decoding("b")], waiting, 1, LIMITS).admitted == ()
    assert names(plan([decoding("b")], waiting, 2, LIMITS).admitted) == ["a"]


def test_no_more_rows_are_admitted_than_there_are() -> None:
    waiting = [make_request(name) for name in "abcdef"]
    made = plan([decoding("z")], waiting, MANY_PAGES, LIMITS)
    assert names(made.admitted) == ["a", "b", "c"]


@pytest.mark.parametrize(("rows", "positions"), [(0, 4), (5, 4), (1, 0)])
def test_limits_that_could_starve_a_row_are_refused(rows: int, positions: int) -> None:
    with pytest.raises(ValueError, match="positions"):
        Limits(rows, positions)


# --- whole workloads ---


@dataclass(frozen=True)
class Job:
    arrival: int
    prompt: int
    new: int
    max_draft: int


@dataclass
class Workshop:
    """A loop without a model: applies plans as `Engine` does and checks each one."""

    num_pages: int
    limits: Limits
    luck: random.Random
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    finished: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pool = PageAllocator(self.num_pages)

    def submit(self, request: Request) -> None:
        if request.known + 1 <= self.pool.capacity:
            self.waiting.append(request)

    def step(self) -> None:
        before = list(self.running)
        made = plan(self.running, self.waiting, self.pool.num_free, self.limits)
        self.check(made, before)
        for request in made.failed:
            self.failed[request.request_id] = request.known
            (self.running if request in self.running else self.waiting).remove(request)
            self.pool.release(request.pages)
        for request in made.preempted:
            self.running.remove(request)
            self.pool.release(request.pages)
            request.computed = 0
            self.waiting.appendleft(request)
        for request in made.admitted:
            assert self.waiting.popleft() is request
            self.running.append(request)
        self.check_rows(made)
        for share in made.shares:  # all at once: this raises if a plan needs too many pages
            request = share.request
            self.pool.grow(request.pages, request.computed + share.count + share.allowance)
        drafts = [self.luck.randint(0, share.allowance) for share in made.shares]
        for share, draft in zip(made.shares, drafts, strict=True):
            request = share.request
            self.pool.rewind(request.pages, request.computed + share.count + draft)
        for share, draft in zip(made.shares, drafts, strict=True):
            share.request.computed += share.count
            if share.request.pending == 0:
                self.commit(share.request, self.luck.randint(0, draft))
        owners = {request.request_id: request.pages for request in self.running}
        self.pool.check_integrity(owners)

    def commit(self, request: Request, accepted: int) -> None:
        request.computed += accepted
        for _ in range(accepted + 1):
            request.tokens.append(97)
            if request.output.push(97):
                self.finished[request.request_id] = request.known
                self.running.remove(request)
                self.pool.release(request.pages)
                return
        self.pool.rewind(request.pages, request.known)

    def check(self, made: Plan, before: list[Request]) -> None:
        """What a plan promises before anybody acts on it."""
        assert made.shares or made.failed, "live requests, and a plan that does nothing"
        used = sum(share.count + share.allowance for share in made.shares)
        assert used <= self.limits.max_positions
        left = [request for request in before if request not in made.preempted]
        gone = len(before) - len(made.preempted)
        assert left == before[:gone], "an older request was preempted before a younger one"
        assert list(made.admitted) == list(self.waiting)[: len(made.admitted)]
        for request in made.failed:
            need = pages_for(request.known + (request in self.waiting))
            assert need > self.num_pages, "a request failed that fits the pool"

    def check_rows(self, made: Plan) -> None:
        """What its rows promise."""
        assert len(self.running) <= self.limits.max_rows
        rows = {share.request.request_id: share for share in made.shares}
        order = [r.request_id for r in self.running if r.request_id in rows]
        assert list(rows) == order, "rows are not in order of admission"
        for request in self.running:
            if request.pending == 1 or request is self.running[0]:
                assert request.request_id in rows, "a row was starved"
        for share in made.shares:
            request = share.request
            assert 1 <= share.count <= request.pending
            if share.allowance:
                assert request.pending == 1
                assert request.known > request.num_prompt_tokens
                assert share.allowance <= request.params.speculation.max_draft_tokens
                assert share.allowance <= request.output.tokens_left - 1


JOBS = st.builds(
    Job,
    arrival=st.integers(0, 30),
    prompt=st.one_of(st.integers(1, 5), st.integers(1, 150)),
    new=st.integers(1, 60),
    max_draft=st.integers(0, 8),
)


@settings(deadline=None, derandomize=True, max_examples=250)
@given(
    jobs=st.lists(JOBS, min_size=1, max_size=9),
    num_pages=st.integers(1, 9),
    rows=st.integers(1, 5),
    positions=st.integers(0, 40),
    seed=st.integers(0, 2**32),
)
def test_every_workload_ends_as_each_request_would_alone(
    jobs: list[Job], num_pages: int, rows: int, positions: int, seed: int
) -> None:
    shop = Workshop(num_pages, Limits(rows, rows + positions), random.Random(seed))
    requests = {
        f"r{index}": make_request(
            f"r{index}", [1] * job.prompt, max_new_tokens=job.new, drafters=("d",),
            max_draft_tokens=job.max_draft,
        )
        for index, job in enumerate(jobs)
    }  # fmt: skip
    arrivals = sorted(requests, key=lambda name: jobs[int(name[1:])].arrival)
    for now in range(20_000):
        while arrivals and jobs[int(arrivals[0][1:])].arrival <= now:
            shop.submit(requests[arrivals.pop(0)])
        if shop.running or shop.waiting:
            shop.step()
        elif not arrivals:
            break
    else:
        raise AssertionError("the workload does not end")
    capacity = shop.pool.capacity
    assert shop.pool.num_free == num_pages
    for index, job in enumerate(jobs):
        name = f"r{index}"
        whole = job.prompt + job.new
        if job.prompt + 1 > capacity:
            assert name not in shop.finished | shop.failed
        elif whole <= capacity + 1:  # the last token is never computed
            assert shop.finished[name] == whole
        else:
            assert shop.failed[name] == capacity + 1
