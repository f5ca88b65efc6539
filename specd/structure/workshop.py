"""Where structures are made: off the event loop, a bounded amount at a time.

A structure that is new is tried out in a process first, which may take seconds; then its matchers
are made here, in milliseconds. Each has a thread, so that what is known never waits behind what may
be a trap.
Invariant: what is alive is bounded in bytes of text, whoever has gone meanwhile, and work that
nobody waits for is not begun.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import anyio

from specd.engine.params import StructureParams
from specd.errors import InvalidField, TooManyStructures
from specd.structure.bridge import TokenizerBridge
from specd.structure.compiling import compiled, limits_of
from specd.structure.drafter import GrammarDrafter
from specd.structure.grammar import field_of, grammar_of
from specd.structure.judge import Judge, TooCostly
from specd.structure.matching import SequenceStructure
from specd.text.tokenizer import Tokenizer
from specd.threads import DedicatedThread, ThreadClosed

T = TypeVar("T")

# Two that are killed may stand before one that is fine.
PATIENCE_S = 8.0
# The text of all live sequences together, and something for each of them. A matcher takes 100 KB,
# and 20 to 40 bytes for each byte of a long text.
MAX_LIVE_BYTES = 2 * 1024 * 1024
BYTES_PER_SEQUENCE = 1024
MAX_JUDGED = 1024
# Of processor time, for all matchers of a request: it is taken from everybody's steps. A typical
# schema takes 1 ms, the worst texts that are worth something took 0.3 s.
MAX_COMPILE_S = 1.0
_NUM_MASKERS = 2


class Workshop:
    """Makes structures for sequences, once it is open and until it is closed."""

    def __init__(
        self,
        drafter: GrammarDrafter,
        *,
        patience_s: float = PATIENCE_S,
        max_live_bytes: int = MAX_LIVE_BYTES,
    ) -> None:
        self._bridge: TokenizerBridge | None = None  # stays so where the model has no end token
        self._judge: Judge | None = None
        self._drafter = drafter
        self._patience_s = patience_s
        self._max_live_bytes = max_live_bytes
        self._live_bytes = 0
        # What was tried out, by digest: the seconds of a compile, or why it is too costly. The
        # latest is last.
        self._judged: OrderedDict[str, float | str] = OrderedDict()
        self._trial = anyio.Lock()
        self._trying = DedicatedThread("specd-structure-trial")
        self._compiling = DedicatedThread("specd-structure")
        self._maskers = ThreadPoolExecutor(_NUM_MASKERS, "specd-masks")

    @property
    def live_bytes(self) -> int:
        """What the structures that are made or alive count for."""
        return self._live_bytes

    async def open(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Learn the model's tokens; the event loop stands still for a part of it."""
        if tokenizer.eos_ids:
            make_bridge = partial(TokenizerBridge, tokenizer, vocab_size)
            self._bridge = await self._compiling.call(make_bridge)
            self._judge = Judge(self._bridge)

    async def make(self, params: StructureParams, count: int) -> list[SequenceStructure]:
        """The structures of `count` sequences; each has to be closed.

        Raises:
            InvalidField: it is no structure, too complex, or the model cannot end one.
            TooManyStructures: no room for it now.
        """
        if self._bridge is None:
            raise InvalidField("structure", "the model has no end token, so no form could end")
        each = BYTES_PER_SEQUENCE + sum(len(value.encode()) for value in params.values)
        if self._live_bytes and self._live_bytes + each * count > self._max_live_bytes:
            raise TooManyStructures
        self._live_bytes += each * count
        try:
            with anyio.fail_after(self._patience_s):
                await self._try_out(params, count)
                make_matcher = partial(compiled, params, self._bridge)
                # One by one, so that nothing is made for who has gone, and others come between.
                matchers = [await wanted(self._compiling, make_matcher) for _ in range(count)]
        except InvalidField:
            self._release(each * count)
            raise
        except TimeoutError:
            self._release_when_made(each * count)
            raise TooManyStructures from None
        except BaseException:
            self._release_when_made(each * count)
            raise
        return [
            SequenceStructure(
                self._bridge,
                matcher,
                make_matcher,
                threads=self._maskers,
                live=self._drafter.live,
                on_close=partial(self._release, each),
            )
            for matcher in matchers
        ]

    def close(self) -> None:
        """Take no more work; what runs is left behind."""
        if self._judge is not None:
            self._trying.post(self._judge.close)
        for thread in (self._trying, self._compiling):
            thread.close(0)
        self._maskers.shutdown(wait=False)

    async def _try_out(self, params: StructureParams, count: int) -> None:
        """Raise InvalidField for what is no grammar, or too costly a one for `count` sequences."""
        order = await wanted(self._compiling, partial(_order, params))
        digest = hashlib.sha256(order.encode()).hexdigest()
        if digest not in self._judged:
            async with self._trial:  # another may be at the same one
                if digest not in self._judged:
                    await self._judge_new(digest, order)
        self._judged.move_to_end(digest)
        found = self._judged[digest]
        if isinstance(found, str):
            raise InvalidField(field_of(params), found)
        if found * count > MAX_COMPILE_S:
            raise InvalidField(field_of(params), _too_slow(found, count))

    async def _judge_new(self, digest: str, order: str) -> None:
        assert self._judge is not None
        self._judged[digest] = await self._trying.call(partial(_problem, self._judge, order))
        if len(self._judged) > MAX_JUDGED:
            self._judged.popitem(last=False)

    def _release_when_made(self, num_bytes: int) -> None:
        """What is being made for somebody who has gone takes its memory until it is done."""
        loop = asyncio.get_running_loop()
        try:
            self._compiling.post(lambda: loop.call_soon_threadsafe(self._release, num_bytes))
        except ThreadClosed:
            self._release(num_bytes)

    def _release(self, num_bytes: int) -> None:
        self._live_bytes -= num_bytes


def _order(params: StructureParams) -> str:
    return json.dumps({"grammar": grammar_of(params), "limits": limits_of(params)})


def _problem(judge: Judge, order: str) -> float | str:
    """The processor's seconds that a grammar takes, or why it is too costly."""
    try:
        return judge.check(order)
    except TooCostly as error:
        return str(error)


def _too_slow(seconds: float, count: int) -> str:
    whose = f" for each of {count} sequences" if count > 1 else ""
    return f"takes {seconds:.1f} s to compile{whose}; at most {MAX_COMPILE_S:g} s in all"


async def wanted(thread: DedicatedThread, work: Callable[[], T]) -> T:
    """Let a thread do it, unless nobody waits for it any more when its turn comes."""
    is_wanted = True

    def begin() -> T:
        if not is_wanted:
            raise TimeoutError
        return work()

    try:
        return await thread.call(begin)
    finally:
        is_wanted = False
