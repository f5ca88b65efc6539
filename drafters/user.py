"""Turns what a user wrote into a full drafter: `propose(tokens, budget)` or an object.

Knows the two shapes of the contract and how to tell, before the first request, that something has
neither. Where and when calls run is not decided here.
Invariant: a row whose function raises is a fault of that row; the other rows keep their drafts.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, cast

from drafters.contract import Answer, BaseDrafter, DraftContext, Drafter

PlainPropose = Callable[[list[int], int], Answer]
AsyncPropose = Callable[[list[int], int], Awaitable[Answer]]

# Methods of the full form and how many positional arguments each is called with.
_METHODS = {"begin": 3, "propose": 2, "observe": 3, "end": 2}


class UnusableDrafter(TypeError):
    """An object that is neither form of a drafter; the message says what it lacks."""


class PlainFunction(BaseDrafter):
    """A plain function as a drafter: one call per row, in order, with a list of its own."""

    inline: ClassVar[bool] = False

    def __init__(self, function: PlainPropose) -> None:
        self._function = function

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> list[Answer]:
        """Call the function for each row; an exception becomes the row's answer."""
        return [self._row(row, budget) for row, budget in zip(batch, budgets, strict=True)]

    def _row(self, row: DraftContext, budget: int) -> Answer:
        try:
            return self._function(_own_list(row.tokens), budget)
        except Exception as error:
            return error


class AsyncFunction(BaseDrafter):
    """An `async def` function as a drafter: its rows are awaited one after another.

    All rows share one task, since a task per row costs 16 times as much; so a function that
    waits pays its wait once per row, out of one deadline. What waits on a network should be a
    class, whose `propose` sees all rows of a step at once.
    """

    inline: ClassVar[bool] = False

    def __init__(self, function: AsyncPropose) -> None:
        self._function = function

    async def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> list[Answer]:
        """Await the function for each row; an exception becomes the row's answer."""
        answers: list[Answer] = []
        for row, budget in zip(batch, budgets, strict=True):
            try:
                answers.append(await self._function(_own_list(row.tokens), budget))
            except Exception as error:
                answers.append(error)
        return answers


def _own_list(tokens: Sequence[int]) -> list[int]:
    # A slice of a view is a list already, made six times faster than by iteration.
    copy = tokens[:]
    return copy if isinstance(copy, list) else list(copy)


def as_drafter(thing: object) -> Drafter:
    """Return `thing` as a full drafter: an object of the full form itself, a function wrapped.

    Raises: UnusableDrafter with a sentence that says what to change.
    """
    if inspect.isclass(thing):
        return as_drafter(_instance(thing))
    if hasattr(thing, "propose"):
        _check_full_form(thing)
        return cast(Drafter, thing)
    if not callable(thing):
        raise UnusableDrafter(
            f"it is a {type(thing).__name__}; a drafter is a function propose(tokens, budget) "
            "or a class with the methods of drafters.contract.Drafter"
        )
    return _wrap_function(thing)


def _instance(cls: type) -> object:
    try:
        return cls()
    except Exception as error:
        raise UnusableDrafter(
            f"calling {cls.__name__}() raised {type(error).__name__}: {error}; the class must be "
            "usable without arguments, or name an instance instead"
        ) from error


def _wrap_function(function: Callable[..., object]) -> Drafter:
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    for candidate in (function, called):
        if inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise UnusableDrafter("it is a generator; return a list of token ids instead")
    _check_arguments(function, "it", 2, "(tokens, budget)")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
        return AsyncFunction(cast(AsyncPropose, function))
    return PlainFunction(cast(PlainPropose, function))


def _check_full_form(thing: object) -> None:
    missing = [name for name in _METHODS if not callable(getattr(thing, name, None))]
    if missing or not hasattr(thing, "inline"):
        lacks = ", ".join([*missing, *([] if hasattr(thing, "inline") else ["inline"])])
        raise UnusableDrafter(
            f"{type(thing).__name__} lacks {lacks}; subclass drafters.contract.BaseDrafter, "
            "which has a default for each"
        )
    for name, count in _METHODS.items():
        method = getattr(thing, name)
        _check_arguments(method, f"{type(thing).__name__}.{name}", count, "of the contract")
        if name != "propose" and inspect.iscoroutinefunction(method):
            raise UnusableDrafter(
                f"{type(thing).__name__}.{name} is `async def`; only propose may be, since "
                "begin, observe and end return at once"
            )


def _check_arguments(function: Callable[..., object], what: str, count: int, which: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin that tells no signature; the first call will tell
        return
    try:
        signature.bind(*[None] * count)
    except TypeError:
        raise UnusableDrafter(
            f"{what} takes {signature}; it is called with {count} positional arguments {which}"
        ) from None
