"""Drafters that the daemon loads from its working directory: each misbehaves in one way.

Imports nothing of specd but the contract, like any user's file, and those that the proof of
equality has too. The daemon's names for them are `drafters_under_test:NAME_N`: every N is an object
of its own with a breaker of its own, so that a test can have one that was never switched off. The
paths of the recording that they replay and of the journal come from the environment.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from benchmarks.equality.drafters import (
    RECORDING,
    Long,
    Nothing,
    Oracle,
    Ragged,
    Replay,
    Wrong,
    wrong,
)
from drafters.contract import BaseDrafter, DraftContext, Drafter, EndReason, SamplingHint

__all__ = ["JOURNAL", "RECORDING", "spec"]
JOURNAL = "DRAFTERS_JOURNAL"
NUM_IDS = 512  # of the standard toy's vocabulary
FOREIGN = 255  # a byte that no text in UTF-8 holds


class One(Replay):
    """Right, and one token only."""

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        return [self.right(row, 1) for row in batch]


class Two(Replay):
    """Right, and two tokens only."""

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        return [self.right(row, 2) for row in batch]


class WrongOne(Replay):
    """Exactly one token, never the one that comes."""

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        return [[wrong(token) for token in self.right(row, 1)] for row in batch]


class Grammatical(Replay):
    """Goes on as another recorded answer did behind the same token: legal there, and wrong here."""

    def begin(self, request_id: str, prompt: Sequence[int], sampling: SamplingHint) -> None:
        super().begin(request_id, prompt, sampling)
        self._start = len(prompt)

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        return [self._elsewhere(row, budget) for row, budget in zip(batch, budgets, strict=True)]

    def _elsewhere(self, row: DraftContext, size: int) -> list[int]:
        known, right = list(row.tokens), self.right(row, 1)
        for text in self._texts[row.request_id]:
            for place in range(self._start + 1, len(text)):
                draft = text[place : place + size]
                if text[place - 1] == known[-1] and draft[:1] != right:
                    return draft
        return []


class Running(Replay):
    """Right; has a program of its own print the answer."""

    inline: ClassVar[bool] = False

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        right = self.all_right(batch, budgets)
        command = ["echo", json.dumps(right)]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


class Multiprocessing(Replay):
    """Right; has a process tell the answer that `start_method` makes."""

    inline: ClassVar[bool] = False

    def __init__(self, start_method: str) -> None:
        super().__init__()
        self._context: Any = multiprocessing.get_context(start_method)

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        right = self.all_right(batch, budgets)
        receiving, sending = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_tell, args=(sending, right))
        process.start()
        told = receiving.recv()
        process.join()
        return told


class Terminating(Replay):
    """Right; a pool of processes tells the answer, and is terminated, which sends it SIGTERM."""

    inline: ClassVar[bool] = False

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        right = self.all_right(batch, budgets)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.map(list, right)


def _tell(sending: Any, answer: Any) -> None:
    sending.send(answer)


class Raising(BaseDrafter):
    inline: ClassVar[bool] = True

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        raise LookupError("it has no idea")


class RaisingEverywhere(BaseDrafter):
    """On a thread, in begin, observe and end."""

    def _raise(self, *_: object) -> None:
        raise ArithmeticError("it never works")

    begin = observe = end = _raise


class SleepingAsync(BaseDrafter):
    async def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        await asyncio.sleep(1)
        return [[1] for _ in batch]


class SleepingBlocking(BaseDrafter):
    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        time.sleep(1)
        return [[1] for _ in batch]


class Stuck(BaseDrafter):
    """Does not come back."""

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        threading.Event().wait(600)


class Journal(BaseDrafter):
    """Drafts random tokens, and writes down what it is told, one JSON document a line."""

    inline: ClassVar[bool] = True

    def __init__(self) -> None:
        self._random = random.Random(3)

    def begin(self, request_id: str, prompt: Sequence[int], sampling: SamplingHint) -> None:
        self._write("begin", request_id, list(prompt), sampling.temperature, sampling.seed)

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        for row, budget in zip(batch, budgets, strict=True):
            self._write("propose", row.request_id, list(row.tokens), budget)
        return [[self._random.randrange(NUM_IDS) for _ in range(n)] for n in budgets]

    def observe(self, request_id: str, tokens: Sequence[int], accepted: int) -> None:
        self._write("observe", request_id, list(tokens), accepted)

    def end(self, request_id: str, reason: EndReason) -> None:
        self._write("end", request_id, reason)

    def _write(self, *what: object) -> None:
        with open(os.environ[JOURNAL], "a") as journal:
            journal.write(json.dumps(what) + "\n")


class Steps(BaseDrafter):
    """Drafts nothing, and writes down who took part in each step: one list of ids a line."""

    inline: ClassVar[bool] = True

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        with open(os.environ[JOURNAL], "a") as journal:
            journal.write(json.dumps([row.request_id for row in batch]) + "\n")
        return [None] * len(batch)


def ten_thousand(tokens: list[int], budget: int) -> list[int]:
    return [tokens[-1]] * 10_000


def foreign(tokens: list[int], budget: int) -> list[int]:
    return [FOREIGN] * budget


def ending(tokens: list[int], budget: int) -> list[int]:
    return [NUM_IDS - 1] * budget


async def negative(tokens: list[int], budget: int) -> list[int]:
    return [-1] * budget


def beyond(tokens: list[int], budget: int) -> list[int]:
    return [tokens[-1], 2**31]


async def nonsense(tokens: list[int], budget: int) -> Any:
    return 17


async def raising_async(tokens: list[int], budget: int) -> list[int]:
    raise asyncio.CancelledError


_KINDS: dict[str, Callable[[], Drafter]] = {
    "oracle": Oracle,
    "greedy": Long,
    "one": One,
    "two": Two,
    "wrong": Wrong,
    "wrong_one": WrongOne,
    "grammatical": Grammatical,
    "ragged": Ragged,
    "running": Running,
    "forking": lambda: Multiprocessing("fork"),
    "terminating": Terminating,
    "spawning": lambda: Multiprocessing("spawn"),
    "raising": Raising,
    "raising_everywhere": RaisingEverywhere,
    "sleeping_async": SleepingAsync,
    "sleeping_blocking": SleepingBlocking,
    "stuck": Stuck,
    "nothing": Nothing,
    "journal": Journal,
    "steps": Steps,
}
_FUNCTIONS = {
    function.__name__: function
    for function in (ten_thousand, foreign, ending, negative, beyond, nonsense, raising_async)
}


def __getattr__(name: str) -> Any:
    kind, _, number = name.rpartition("_")
    if number.isdigit() and kind in _KINDS:
        return _KINDS[kind]()
    if number.isdigit() and kind in _FUNCTIONS:
        return _FUNCTIONS[kind]
    raise AttributeError(name)


def spec(kind: str, number: int = 0) -> str:
    """The name by which a daemon and its requests call a drafter of this file."""
    return f"drafters_under_test:{kind}_{number}"
