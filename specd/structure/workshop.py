"""Where structures are made: off the event loop, a bounded amount at a time.

Knows threads, patience and room; the rest of the package knows what is done there. A compile that
takes too long is left behind, and ends by the library's limits; the others go on beside it.
Invariant: what is alive is bounded in bytes of text, whoever has gone meanwhile, and work that
nobody waits for is not begun.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import anyio
from llguidance import LLMatcher

from specd.engine.params import StructureParams
from specd.errors import InvalidField, TooManyStructures
from specd.structure.bridge import TokenizerBridge
from specd.structure.compiling import compiled
from specd.structure.drafter import GrammarDrafter
from specd.structure.grammar import field_of
from specd.structure.matching import SequenceStructure
from specd.text.tokenizer import Tokenizer
from specd.threads import DedicatedThread

# Ten times what the worst text takes that was found.
PATIENCE_S = 3.0
# The text of all live sequences together, and something for each of them. A matcher takes 100 KB,
# and 20 to 40 bytes for each byte of a long text.
MAX_LIVE_BYTES = 2 * 1024 * 1024
BYTES_PER_SEQUENCE = 1024
_NUM_COMPILERS = 2
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
        self._drafter = drafter
        self._patience_s = patience_s
        self._max_live_bytes = max_live_bytes
        self._live_bytes = 0
        self._compilers = [
            DedicatedThread(f"specd-structure-{number}") for number in range(_NUM_COMPILERS)
        ]
        self._maskers = ThreadPoolExecutor(_NUM_MASKERS, "specd-masks")

    @property
    def live_bytes(self) -> int:
        """What the structures that are made or alive count for."""
        return self._live_bytes

    async def open(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Learn the model's tokens; the event loop stands still for a part of it."""
        if tokenizer.eos_ids:
            make_bridge = partial(TokenizerBridge, tokenizer, vocab_size)
            self._bridge = await self._compilers[0].call(make_bridge)

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
        make_matcher = partial(compiled, params, self._bridge)
        try:
            matchers = await self._compile(make_matcher, params, count)
        except BaseException:
            self._live_bytes -= each * count
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
        for thread in self._compilers:
            thread.close(0)
        self._maskers.shutdown(wait=False)

    async def _compile(
        self, make_matcher: Callable[[], LLMatcher], params: StructureParams, count: int
    ) -> list[LLMatcher]:
        is_wanted, has_begun = True, False

        def work() -> list[LLMatcher]:
            nonlocal has_begun
            has_begun = is_wanted
            return [make_matcher() for _ in range(count if is_wanted else 0)]

        try:
            with anyio.fail_after(self._patience_s):
                thread = min(self._compilers, key=lambda thread: thread.backlog)
                return await thread.call(work)
        except TimeoutError:
            if not has_begun:
                raise TooManyStructures from None
            raise InvalidField(
                field_of(params), f"takes more than {self._patience_s:g} s to compile"
            ) from None
        finally:
            is_wanted = False

    def _release(self, num_bytes: int) -> None:
        self._live_bytes -= num_bytes
