"""Promises of the page allocator, and of the check that proves its books."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specd.kv.pages import (
    PAGE_SIZE,
    RESERVED_PAGES,
    SCRATCH_PAGE,
    ZERO_PAGE,
    IntegrityError,
    NotEnoughPages,
    PageAllocator,
    pages_for,
)


@pytest.mark.parametrize(
    ("positions", "pages"), [(0, 0), (1, 1), (PAGE_SIZE, 1), (PAGE_SIZE + 1, 2)]
)
def test_pages_for_counts_whole_pages(positions: int, pages: int) -> None:
    assert pages_for(positions) == pages


def test_a_pool_hands_out_every_page_once_and_never_a_reserved_one() -> None:
    pool = PageAllocator(5)
    pages: list[int] = []
    assert pool.grow(pages, pool.capacity) == pages
    assert sorted(pages) == list(range(RESERVED_PAGES, RESERVED_PAGES + 5))
    assert not {ZERO_PAGE, SCRATCH_PAGE} & set(pages)
    assert pool.num_free == 0


def test_growing_adds_only_what_is_missing() -> None:
    pool = PageAllocator(5)
    pages: list[int] = []
    pool.grow(pages, 1)
    assert pool.grow(pages, PAGE_SIZE) == []
    added = pool.grow(pages, PAGE_SIZE + 1)
    assert pages[1:] == added
    assert len(added) == 1


def test_growing_beyond_the_pool_is_refused_and_changes_nothing() -> None:
    pool = PageAllocator(2)
    pages: list[int] = []
    pool.grow(pages, 1)
    before = list(pages)
    with pytest.raises(NotEnoughPages):
        pool.grow(pages, 3 * PAGE_SIZE)
    assert pages == before
    assert pool.num_free == 1
    pool.check_integrity({"a": pages})


@pytest.mark.parametrize("keep", [0, 1, PAGE_SIZE, PAGE_SIZE + 1, 3 * PAGE_SIZE, 9 * PAGE_SIZE])
def test_rewinding_keeps_the_first_pages_and_frees_the_rest(keep: int) -> None:
    pool = PageAllocator(5)
    pages: list[int] = []
    pool.grow(pages, 3 * PAGE_SIZE)
    before = list(pages)
    pool.rewind(pages, keep)
    assert pages == before[: pages_for(keep)]
    assert pool.statistics() == (5, len(pages), 5 - len(pages))
    pool.check_integrity({"a": pages})


def test_releasing_twice_frees_once() -> None:
    pool = PageAllocator(3)
    pages: list[int] = []
    pool.grow(pages, 2 * PAGE_SIZE)
    pool.release(pages)
    pool.release(pages)
    assert pages == []
    assert pool.num_free == 3
    pool.check_integrity({"a": pages})


def test_a_pool_has_at_least_one_page() -> None:
    with pytest.raises(ValueError, match="at least one page"):
        PageAllocator(0)


def owned_pool() -> tuple[PageAllocator, list[int], list[int]]:
    pool = PageAllocator(6)
    one: list[int] = []
    two: list[int] = []
    pool.grow(one, 2 * PAGE_SIZE)
    pool.grow(two, PAGE_SIZE)
    pool.check_integrity({"one": one, "two": two})
    return pool, one, two


def test_the_check_finds_a_lost_page() -> None:
    pool, one, two = owned_pool()
    one.pop()
    with pytest.raises(IntegrityError, match="lost"):
        pool.check_integrity({"one": one, "two": two})


def test_the_check_finds_an_owner_that_was_forgotten() -> None:
    pool, one, _ = owned_pool()
    with pytest.raises(IntegrityError, match="lost"):
        pool.check_integrity({"one": one})


def test_the_check_finds_a_page_with_two_owners() -> None:
    pool, one, two = owned_pool()
    two.append(one[0])
    with pytest.raises(IntegrityError, match="belongs to one too"):
        pool.check_integrity({"one": one, "two": two})


def test_the_check_finds_a_page_that_an_owner_holds_twice() -> None:
    pool, one, two = owned_pool()
    one.append(one[0])
    with pytest.raises(IntegrityError, match="belongs to one too"):
        pool.check_integrity({"one": one, "two": two})


def test_the_check_finds_a_page_that_is_owned_and_free() -> None:
    pool, one, two = owned_pool()
    stale = list(one)
    pool.release(one)
    with pytest.raises(IntegrityError, match="free list"):
        pool.check_integrity({"one": stale, "two": two})


def test_the_check_finds_a_page_that_was_freed_twice() -> None:
    pool, one, two = owned_pool()
    copy = list(one)
    pool.release(one)
    pool.release(copy)
    with pytest.raises(IntegrityError, match="twice"):
        pool.check_integrity({"one": one, "two": two})


@pytest.mark.parametrize("page", [ZERO_PAGE, SCRATCH_PAGE, RESERVED_PAGES + 6, -1])
def test_the_check_finds_a_page_that_is_never_handed_out(page: int) -> None:
    pool, one, two = owned_pool()
    two.append(page)
    with pytest.raises(IntegrityError, match="out of range"):
        pool.check_integrity({"one": one, "two": two})


class PoolMachine(RuleBasedStateMachine):
    """Any history of owners that grow, rewind and leave; the oracle is a count of pages."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PageAllocator(7)
        self.owners: dict[str, list[int]] = {name: [] for name in "abc"}

    @rule(name=st.sampled_from("abc"), positions=st.integers(0, 8 * PAGE_SIZE))
    def grow(self, name: str, positions: int) -> None:
        pages = self.owners[name]
        before, free = list(pages), self.pool.num_free
        try:
            added = self.pool.grow(pages, positions)
        except NotEnoughPages:
            assert pages_for(positions) - len(before) > free
            assert pages == before
        else:
            assert pages == before + added
            assert len(pages) == max(len(before), pages_for(positions))

    @rule(name=st.sampled_from("abc"), positions=st.integers(0, 8 * PAGE_SIZE))
    def rewind(self, name: str, positions: int) -> None:
        before = list(self.owners[name])
        self.pool.rewind(self.owners[name], positions)
        assert self.owners[name] == before[: pages_for(positions)]

    @rule(name=st.sampled_from("abc"))
    def release(self, name: str) -> None:
        self.pool.release(self.owners[name])

    @invariant()
    def the_books_add_up(self) -> None:
        used = sum(map(len, self.owners.values()))
        assert self.pool.statistics() == (7, used, 7 - used)
        self.pool.check_integrity(self.owners)


PoolMachine.TestCase.settings = settings(
    deadline=None, derandomize=True, max_examples=40, stateful_step_count=30
)
TestPool = PoolMachine.TestCase
