"""The whole contract between specd and a drafter. Imports nothing of specd.

A drafter guesses the next tokens of a request; the target model checks them. A drafter can be
wrong, late, slow or broken: the only thing that it can change is speed, never a token. It returns
as many tokens as it likes, or none, and never hears of batches, padding or pages.

The smallest drafter is a function, `async` or plain:

    def propose(tokens: list[int], budget: int) -> list[int]:
        "tokens: prompt and answer so far; budget: how many drafts can be used."

The full form is a class with the methods of `Drafter` below; subclass `BaseDrafter` and override
what you need. One instance serves all requests.

Rules of the full form:

* `begin` comes before the first `propose` of a request, `end` after the last call for it.
* `observe` tells every committed token exactly once and in order, after `begin` told the prompt:
  the committed text only grows, so a drafter never has to take anything back, unless it moved
  its own state along with its proposals; `accepted` says how many of its last draft were right.
* A call for several sequences is as many requests to a drafter, each with an id of its own.
* `begin`, `observe` and `end` are plain methods and return at once.
* Where calls run: a class with `inline = True` promises to answer within microseconds and is
  called on the event loop; an `async def propose` is awaited there; any other plain `propose`
  runs, with all other calls of its object, in order, on a thread of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal, Protocol, overload, runtime_checkable

EndReason = Literal["finished", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class SamplingHint:
    """What a drafter may want to know of a request's sampling. `temperature` 0 is greedy."""

    temperature: float
    seed: int


class TokenView(Sequence[int]):
    """The first tokens of a list that only ever grows, as a read-only sequence of fixed length.

    Costs nothing to make and stays as it is while the list grows, in any thread. A slice is a
    list of its own: `view[:]` copies all of it.
    """

    __slots__ = ("_length", "_tokens")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._length = len(tokens)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step > 0:
                return list(self._tokens[start:stop:step])
            return [self._tokens[i] for i in range(start, stop, step)]
        if not -self._length <= index < self._length:
            raise IndexError(f"index {index} of a view of {self._length} tokens")
        return self._tokens[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[int]:
        return islice(self._tokens, self._length)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (TokenView, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and self[:] == list(other)

    def __repr__(self) -> str:
        return f"TokenView({self[:]!r})"


@dataclass(frozen=True, slots=True)
class DraftContext:
    """One row of a `propose` call.

    `tokens` are the committed ids, prompt first, at least one of them generated. It is read-only
    and its length is the base of the draft: the proposal continues right behind it.
    """

    request_id: str
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft with an optional confidence in [0, 1] for each of its tokens."""

    token_ids: Sequence[int]
    confidence: Sequence[float] | None = None


# An exception in the place of an answer is a fault of that row alone; a raised one costs the step.
Answer = Proposal | Sequence[int] | Exception | None
Answers = Sequence[Answer]


@runtime_checkable
class Drafter(Protocol):
    """The full form. `propose` answers every row of a step in one call, in the order asked."""

    inline: ClassVar[bool]

    def begin(self, request_id: str, prompt: Sequence[int], sampling: SamplingHint) -> None: ...

    def propose(
        self, batch: Sequence[DraftContext], budgets: Sequence[int]
    ) -> Answers | Awaitable[Answers]: ...

    def observe(self, request_id: str, tokens: Sequence[int], accepted: int) -> None: ...

    def end(self, request_id: str, reason: EndReason) -> None: ...


class BaseDrafter:
    """A drafter that forgets everything and proposes nothing; override what you need."""

    inline: ClassVar[bool] = False

    def begin(self, request_id: str, prompt: Sequence[int], sampling: SamplingHint) -> None:
        """A request starts; `prompt` is its tokens before the first generated one."""

    def propose(
        self, batch: Sequence[DraftContext], budgets: Sequence[int]
    ) -> Answers | Awaitable[Answers]:
        """Return one answer per row; `budgets[i]` is the number of tokens usable for row i."""
        return [None] * len(batch)

    def observe(self, request_id: str, tokens: Sequence[int], accepted: int) -> None:
        """`tokens` were committed; `accepted` of this drafter's last proposal were right."""

    def end(self, request_id: str, reason: EndReason) -> None:
        """The request is over; forget it."""
