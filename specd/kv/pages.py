"""Who owns which KV page. Numbers only: the memory belongs to the device thread.

Two pages are never handed out: the zero page, which block tables name behind the end of a row, and
the scratch page, to which pad positions write and which nobody reads.
Invariant: every page is free or owned by exactly one owner; `check_integrity` proves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

PAGE_SIZE = 32  # positions
ZERO_PAGE = 0
SCRATCH_PAGE = 1
RESERVED_PAGES = 2


class PageStatistics(NamedTuple):
    """Counts of pages, the reserved two left out."""

    total: int
    used: int
    free: int


class NotEnoughPages(Exception):
    """More pages were asked for than are free; the scheduler plans so that it never happens."""


class IntegrityError(Exception):
    """The books of the allocator do not add up: a bug of specd."""


def pages_for(num_positions: int) -> int:
    """Pages that hold this many positions."""
    return -(-num_positions // PAGE_SIZE)


class PageAllocator:
    """Hands out page ids. Owners keep their pages in a list, in order of position."""

    def __init__(self, num_pages: int) -> None:
        """`num_pages` counts the usable pages; ids start behind the reserved two."""
        if num_pages < 1:
            raise ValueError("a pool needs at least one page")
        self._total = num_pages
        self._free = list(range(num_pages + RESERVED_PAGES - 1, RESERVED_PAGES - 1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def capacity(self) -> int:
        """Positions that the whole pool holds."""
        return self._total * PAGE_SIZE

    def statistics(self) -> PageStatistics:
        return PageStatistics(self._total, self._total - self.num_free, self.num_free)

    def grow(self, pages: list[int], num_positions: int) -> list[int]:
        """Extend `pages` until it holds `num_positions`; returns the added ids.

        Raises:
            NotEnoughPages: and leaves everything as it was.
        """
        missing = pages_for(num_positions) - len(pages)
        if missing <= 0:
            return []
        if missing > len(self._free):
            raise NotEnoughPages(f"{missing} pages are needed and {len(self._free)} are free")
        added = [self._free.pop() for _ in range(missing)]
        pages.extend(added)
        return added

    def rewind(self, pages: list[int], num_positions: int) -> None:
        """Give back the pages behind the first `num_positions`: rejected drafts own nothing."""
        keep = pages_for(num_positions)
        self._free.extend(reversed(pages[keep:]))
        del pages[keep:]

    def release(self, pages: list[int]) -> None:
        """Give back everything."""
        self.rewind(pages, 0)

    def check_integrity(self, owners: Mapping[str, Sequence[int]]) -> None:
        """Compare the books with what the live owners hold.

        Raises:
            IntegrityError: a page is lost, doubly owned, reserved, or free while owned.
        """
        holder = dict.fromkeys(self._free, "the free list")
        if len(holder) != len(self._free):
            raise IntegrityError("a page is in the free list twice")
        for owner, pages in owners.items():
            for page in pages:
                if page in holder:
                    raise IntegrityError(f"page {page} of {owner} belongs to {holder[page]} too")
                holder[page] = owner
        expected = set(range(RESERVED_PAGES, RESERVED_PAGES + self._total))
        if holder.keys() != expected:
            lost = sorted(expected ^ holder.keys())
            raise IntegrityError(f"pages lost or out of range: {lost[:8]}")
