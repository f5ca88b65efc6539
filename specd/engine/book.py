"""The books of the engine: who waits, who runs, and who owns which pages and slot.

Knows every way in which a generation and each of its requests start and end; knows nothing of
steps. All changes of a request's state between waiting, running and gone are here.
Invariants: a live request is in exactly one of waiting and running; every admitted stream begins
with `Started` and ends exactly once; whoever is gone owns no page, no slot and no drafter session.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from drafters.contract import EndReason, SamplingHint
from specd.engine.drafting import Drafting
from specd.engine.events import Delta, FinishReason, SequenceFinished, Started
from specd.engine.facts import ModelFacts
from specd.engine.generation import EndCause, Generation
from specd.engine.output import Ending
from specd.engine.request import Request
from specd.engine.step_types import TokenLogprob
from specd.errors import DuplicateRequest, NotServing, OutOfPages, QueueFull, SpecdError
from specd.kv.pages import PageAllocator

_log = logging.getLogger("specd.engine")

# What a caller is told to wait for when the queue is full.
_RETRY_AFTER_S = 1.0


class Book:
    """Everything that is counted, for all live generations."""

    def __init__(
        self,
        drafting: Drafting,
        model: ModelFacts,
        *,
        num_pages: int,
        max_rows: int,
        max_waiting: int,
        clock: Callable[[], float],
    ) -> None:
        self.pages = PageAllocator(num_pages)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.refusing: str | None = None
        self._drafting = drafting
        self._model = model
        self._clock = clock
        self._max_waiting = max_waiting
        self._max_rows = max_rows
        self._free_slots = list(range(max_rows))
        self._generations: dict[str, Generation] = {}
        # Ids of calls whose prompts are not ready, and whether they are to end at once.
        self._aborted_early: dict[str, bool] = {}

    @property
    def slots_used(self) -> int:
        return self._max_rows - len(self._free_slots)

    def live(self) -> list[Generation]:
        """All generations that have not ended."""
        return list(self._generations.values())

    def find(self, request_id: str) -> Generation | None:
        return self._generations.get(request_id)

    @contextmanager
    def expecting(self, request_id: str, num_sequences: int) -> Iterator[None]:
        """Hold an id while its prompt is made ready. Raises as `Engine.expecting`."""
        self._check_room(request_id, num_sequences)
        self._aborted_early[request_id] = False
        try:
            yield
        finally:
            self._aborted_early.pop(request_id, None)

    def abort_expected(self, request_id: str) -> bool:
        """Let an expected request end when it comes; False if none of this id is expected."""
        if request_id not in self._aborted_early:
            return False
        self._aborted_early[request_id] = True
        return True

    def submit(self, generation: Generation) -> bool:
        """Put its sequences at the end of the queue; True if it was aborted before it came.

        Raises as `Engine.submit`.
        """
        is_aborted = self._aborted_early.pop(generation.request_id, False)
        self._check_room(generation.request_id, len(generation.sequences))
        needed = generation.num_prompt_tokens + 1
        if needed > self.pages.capacity:
            raise OutOfPages(needed, self.pages.capacity)
        self._generations[generation.request_id] = generation
        self.waiting.extend(generation.sequences)
        return is_aborted

    def _check_room(self, request_id: str, num_sequences: int) -> None:
        if self.refusing is not None:
            raise NotServing(self.refusing)
        if request_id in self._generations or request_id in self._aborted_early:
            raise DuplicateRequest(request_id)
        # Those for free slots wait until the next step only; the limit is for those behind them.
        room = self._max_waiting + len(self._free_slots)
        if len(self.waiting) + num_sequences > room:
            raise QueueFull(self._max_waiting, _RETRY_AFTER_S)

    def admit(self, request: Request) -> None:
        """Move the first of the queue to the running ones."""
        assert self.waiting[0] is request
        self.waiting.popleft()
        self.running.append(request)
        request.slot = heapq.heappop(self._free_slots)
        if request.admitted:
            return
        request.admitted = True
        _log.debug("request %s admitted: %d tokens", request.request_id, request.known)
        sampling = request.params.sampling
        hint = SamplingHint(temperature=sampling.temperature, seed=sampling.seed)
        chain = request.params.speculation.drafters
        self._drafting.begin(request.request_id, tuple(request.tokens), hint, chain)
        if request.structure is not None:
            request.structure.begin(request.request_id)
        generation = request.generation
        if generation.admitted_s is None:
            generation.admitted_s = self._clock()
            if not generation.sequences[0].scoring:
                self._start(generation)

    def score(self, request: Request, logprobs: Sequence[TokenLogprob]) -> None:
        """Take log probabilities of prompt tokens; the last of them starts the stream."""
        assert request.prompt_logprobs is not None
        request.prompt_logprobs.extend(logprobs)
        if request.generation.prompt_logprobs:
            self._start(request.generation)

    def preempt(self, request: Request) -> None:
        """Take everything from a running request but its tokens; it resumes by recomputing."""
        self.running.remove(request)
        self._give_back(request)
        request.restart()
        self.waiting.appendleft(request)

    def finish(self, request: Request, ending: Ending, reason: EndReason = "finished") -> None:
        """End a sequence cleanly, and the stream with the last of them."""
        self._remove(request, reason)
        _log.debug(
            "request %s ended: %s after %d tokens",
            request.request_id,
            ending.reason.name,
            request.output.num_tokens,
        )
        generation = request.generation
        generation.mailbox.put_nowait(
            SequenceFinished(
                ending.reason, ending.matched_token_id, ending.matched_string, request.index
            )
        )
        if not generation.live:
            generation.mailbox.put_nowait(generation.finished())
            generation.mailbox.close()

    def fail(self, generation: Generation, error: SpecdError) -> None:
        """End a stream with an error. Harmless when it has ended."""
        if not generation.live:
            return
        _log.warning("request %s fails: %s", generation.request_id, error)
        self._remove_all(generation, "failed")
        if generation.admitted_s is not None:
            self._start(generation)
        generation.mailbox.close(error)

    def drop_ended(self) -> None:
        """Act on the ends that were asked for from outside since the last step."""
        for generation in self.live():
            if generation.end_cause is EndCause.ABORTED:
                self._abort(generation)
            elif generation.end_cause is EndCause.CANCELLED:
                self._remove_all(generation, "cancelled")
                _log.debug("request %s was left by its reader", generation.request_id)
                generation.mailbox.close()

    def check_integrity(self) -> None:
        """Compare the page allocator with what live requests hold. Raises IntegrityError."""
        held = (request for generation in self.live() for request in generation.live)
        self.pages.check_integrity({request.request_id: request.pages for request in held})

    def _start(self, generation: Generation) -> None:
        """Begin a stream, if nothing has begun it.

        One that ends before all of its prompt is scored begins without log probabilities: part of
        them would look like a shorter prompt.
        """
        if generation.started:
            return
        generation.started = True
        admitted_s = self._clock() if generation.admitted_s is None else generation.admitted_s
        seeds = generation.seeds
        generation.mailbox.put_nowait(
            Started(
                request_id=generation.request_id,
                model=self._model.name,
                num_prompt_tokens=generation.num_prompt_tokens,
                num_cached_prompt_tokens=0,
                seed=seeds[0],
                queue_time_s=admitted_s - generation.arrived_s,
                fingerprint=self._model.fingerprint,
                sequence_seeds=seeds,
                prompt_logprobs=generation.prompt_logprobs,
            )
        )

    def _abort(self, generation: Generation) -> None:
        self._start(generation)
        for request in tuple(generation.live):
            request.output.flush()
            if text := request.output.take_text():
                generation.mailbox.put_nowait(
                    Delta(text, (), request.output.num_tokens, sequence_index=request.index)
                )
            self.finish(request, Ending(FinishReason.ABORTED), "cancelled")

    def _remove_all(self, generation: Generation, reason: EndReason) -> None:
        for request in tuple(generation.live):
            self._remove(request, reason)

    def _remove(self, request: Request, reason: EndReason) -> None:
        """Forget a request and everything that it owns."""
        generation = request.generation
        generation.live.remove(request)
        if not generation.live:
            del self._generations[generation.request_id]
        if request.slot is not None:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._give_back(request)
        if request.structure is not None:
            request.structure.close()
        if request.admitted:
            self._drafting.end(request.request_id, reason)

    def _give_back(self, request: Request) -> None:
        self.pages.release(request.pages)
        if request.slot is not None:
            heapq.heappush(self._free_slots, request.slot)
            request.slot = None
