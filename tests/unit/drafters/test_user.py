"""Promises to whoever writes a drafter as a function or as an object."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import pytest

from drafters.contract import BaseDrafter, DraftContext, Drafter, TokenView
from drafters.user import UnusableDrafter, as_drafter

ROWS = [DraftContext("a", TokenView([1, 2])), DraftContext("b", TokenView([3]))]


async def ask(drafter: Drafter, rows: Sequence[DraftContext] = ROWS) -> Any:
    answers = drafter.propose(rows, [4] * len(rows))
    return await answers if inspect.isawaitable(answers) else answers


def last_token(tokens: list[int], budget: int) -> list[int]:
    return tokens[-1:] * budget


async def last_token_async(tokens: list[int], budget: int) -> list[int]:
    return last_token(tokens, budget)


class Callable:
    def __call__(self, tokens: list[int], budget: int) -> list[int]:
        return last_token(tokens, budget)

    def method(self, tokens: list[int], budget: int) -> list[int]:
        return last_token(tokens, budget)


class AsyncCallable:
    async def __call__(self, tokens: list[int], budget: int) -> list[int]:
        return last_token(tokens, budget)


def with_default(tokens: list[int], budget: int, size: int = 9) -> list[int]:
    return last_token(tokens, budget)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "function",
    [
        last_token,
        last_token_async,
        Callable(),
        Callable().method,
        Callable,
        AsyncCallable(),
        with_default,
        functools.partial(with_default, size=3),
        functools.partial(last_token_async),
        lambda *arguments: last_token(*arguments),
    ],
    ids=lambda function: type(function).__name__,
)
async def test_whatever_takes_tokens_and_a_budget_is_a_drafter(function: Any) -> None:
    drafter = as_drafter(function)
    assert isinstance(drafter, Drafter)
    assert await ask(drafter) == [[2, 2, 2, 2], [3, 3, 3, 3]]


@pytest.mark.parametrize(
    ("function", "is_async"),
    [(last_token, False), (last_token_async, True), (AsyncCallable(), True)],
)
def test_a_function_is_awaited_if_and_only_if_it_is_async(function: Any, is_async: bool) -> None:
    drafter = as_drafter(function)
    assert inspect.iscoroutinefunction(drafter.propose) is is_async
    assert not drafter.inline


@pytest.mark.asyncio
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_gets_a_list_of_its_own(is_async: bool) -> None:
    def spoil(tokens: list[int], budget: int) -> list[int]:
        assert type(tokens) is list
        tokens.clear()
        return []

    async def spoil_async(tokens: list[int], budget: int) -> list[int]:
        return spoil(tokens, budget)

    committed = [1, 2, 3]
    for tokens in (TokenView(committed), committed, (1, 2, 3)):
        drafter = as_drafter(spoil_async if is_async else spoil)
        assert await ask(drafter, [DraftContext("a", tokens)]) == [[]]
    assert committed == [1, 2, 3]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_row_whose_function_raises_fails_alone(is_async: bool) -> None:
    def picky(tokens: list[int], budget: int) -> list[int]:
        if tokens == [3]:
            raise ValueError("not three")
        return [7]

    async def picky_async(tokens: list[int], budget: int) -> list[int]:
        return picky(tokens, budget)

    answers = await ask(as_drafter(picky_async if is_async else picky))
    assert answers[0] == [7]
    assert isinstance(answers[1], ValueError)


class Full(BaseDrafter):
    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> list[list[int]]:
        return [[1] for _ in batch]


def test_an_object_of_the_full_form_is_used_as_it_is() -> None:
    drafter = Full()
    assert as_drafter(drafter) is drafter


def test_a_class_is_called_without_arguments() -> None:
    assert isinstance(as_drafter(Full), Full)


class NeedsArguments(Full):
    def __init__(self, path: str) -> None:
        raise NotImplementedError


class OnlyPropose:
    def propose(self, batch: Any, budgets: Any) -> Any:
        return []


class WithoutInline(OnlyPropose):
    def begin(self, request_id: Any, prompt: Any, sampling: Any) -> None: ...
    def observe(self, request_id: Any, tokens: Any, accepted: Any) -> None: ...
    def end(self, request_id: Any, reason: Any) -> None: ...


class ShortObserve(Full):
    def observe(self, request_id: str) -> None:  # type: ignore[override]
        raise NotImplementedError


class AsyncBegin(Full):
    async def begin(self, *arguments: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


def one_argument(tokens: list[int]) -> list[int]:
    return []


def keyword_only(tokens: list[int], *, budget: int) -> list[int]:
    return []


def generator(tokens: list[int], budget: int) -> Any:
    yield 1


async def async_generator(tokens: list[int], budget: int) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("thing", "sentence"),
    [
        (NeedsArguments, r"NeedsArguments\(\) raised TypeError.*without arguments"),
        (OnlyPropose, "OnlyPropose lacks begin, observe, end, inline; subclass"),
        (WithoutInline, "WithoutInline lacks inline; subclass"),
        (ShortObserve, r"ShortObserve\.observe takes .* called with 3 positional arguments"),
        (AsyncBegin, r"AsyncBegin\.begin is `async def`; only propose may be"),
        (one_argument, r"it takes \(tokens.*called with 2 positional"),
        (keyword_only, "called with 2 positional"),
        (generator, "it is a generator; return a list"),
        (async_generator, "it is a generator; return a list"),
        (5, "it is a int; a drafter is a function"),
        (inspect, "it is a module; a drafter is a function"),
    ],
)
def test_what_is_no_drafter_is_refused_with_a_sentence(thing: Any, sentence: str) -> None:
    with pytest.raises(UnusableDrafter, match=sentence):
        as_drafter(thing)
