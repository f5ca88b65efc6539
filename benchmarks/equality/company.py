"""Who is beside a stream: functions that play members of a group in some order, at some time.

Knows how to begin, join and leave; what is played and compared is the caller's. Every stream of a
group is compared, so its members are each other's neighbours.
Invariant: a function ends when every stream that it began has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

# Members of a crowd that begin together; each later one joins when an earlier one speaks.
_FIRST = 9
_DEADLINE_S = 0.05


@dataclass(frozen=True, slots=True)
class Leave:
    """How a stream is left: after so many tokens, or at a deadline."""

    way: Literal["cancel", "abort", "deadline"]
    after_tokens: int = 0

    @property
    def deadline_s(self) -> float | None:
        """The time limit of the call."""
        return _DEADLINE_S if self.way == "deadline" else None


# Who leaves a crowd.
LEAVING = (Leave("cancel", 5), Leave("abort", 9), Leave("cancel"), Leave("deadline"))


class Play(Protocol):
    """Runs one stream to its end and compares it. speaks: set with the first token, or the end."""

    async def __call__(
        self, member: Any, *, speaks: asyncio.Event | None = None, leave: Leave | None = None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Company:
    """size: of a group. is_tight: the daemon has too few pages for it. sign: as of a drafter."""

    size: int
    run: Callable[[Play, Sequence[Any]], Awaitable[None]]
    is_tight: bool = False
    sign: Literal["recomputed", "cached"] | None = None


async def alone(play: Play, members: Sequence[Any]) -> None:
    """One after the other."""
    for member in members:
        await play(member)


async def together(play: Play, members: Sequence[Any]) -> None:
    """All at once."""
    async with asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(play(member))


async def crowd(play: Play, members: Sequence[Any]) -> None:
    """Nine at once; the others join in the middle of these; four more begin and leave."""
    speaking = [asyncio.Event() for _ in members]

    async def join(place: int, leave: Leave | None = None) -> None:
        if place >= _FIRST:
            await speaking[place - _FIRST].wait()
        await play(members[place], speaks=None if leave else speaking[place], leave=leave)

    async with asyncio.TaskGroup() as tasks:
        for place in range(len(members)):
            tasks.create_task(join(place))
        for place, leave in zip(range(_FIRST - 2, len(members)), LEAVING, strict=False):
            tasks.create_task(join(place, leave))


async def again(play: Play, members: Sequence[Any]) -> None:
    """Each alone, then all of them twice at once: their prompts are known, and in flight."""
    await alone(play, members)
    await together(play, [*members, *members])
