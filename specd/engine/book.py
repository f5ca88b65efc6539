"""The books of the engine: who waits, who runs, and who owns which pages and slot.

Knows every way in which a request starts and ends; knows nothing of steps. All changes of a
request's state between waiting, running and gone are here.
Invariants: a live request is in exactly one of waiting and running; every admitted stream ends
exactly once; whoever is gone owns no page, no slot and no drafter session.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from drafters.contract import EndReason, SamplingHint
from specd.engine.drafting import Drafting
from specd.engine.events import Delta, Finished, FinishReason, SequenceFinished, Usage
from specd.engine.output import Ending
from specd.engine.request import EndCause, Request
from specd.errors import DuplicateRequest, NotServing, OutOfPages, QueueFull, SpecdError
from specd.kv.pages import PageAllocator

_log = logging.getLogger("specd.engine")

# What a caller is told to wait for when the queue is full.
_RETRY_AFTER_S = 1.0


class Book:
    """Everything that is counted, for all live requests."""

    def __init__(
        self, drafting: Drafting, *, num_pages: int, max_rows: int, max_waiting: int
    ) -> None:
        self.pages = PageAllocator(num_pages)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.refusing: str | None = None
        self._drafting = drafting
        self._max_waiting = max_waiting
        self._max_rows = max_rows
        self._free_slots = list(range(max_rows))
        self._requests: dict[str, Request] = {}
        # Ids of requests whose prompts are not ready, and whether they are to end at once.
        self._aborted_early: dict[str, bool] = {}

    @property
    def slots_used(self) -> int:
        return self._max_rows - len(self._free_slots)

    def live(self) -> list[Request]:
        """All requests that have not ended."""
        return list(self._requests.values())

    def find(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    @contextmanager
    def expecting(self, request_id: str) -> Iterator[None]:
        """Hold an id while its prompt is made ready. Raises as `Engine.expecting`."""
        self._check_room(request_id)
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

    def submit(self, request: Request) -> bool:
        """Put a request at the end of the queue; True if it was aborted before it came.

        Raises as `Engine.submit`.
        """
        is_aborted = self._aborted_early.pop(request.request_id, False)
        self._check_room(request.request_id)
        if request.known + 1 > self.pages.capacity:
            raise OutOfPages(request.known + 1, self.pages.capacity)
        self._requests[request.request_id] = request
        self.waiting.append(request)
        return is_aborted

    def _check_room(self, request_id: str) -> None:
        if self.refusing is not None:
            raise NotServing(self.refusing)
        if request_id in self._requests or request_id in self._aborted_early:
            raise DuplicateRequest(request_id)
        # Requests for free slots wait until the next step only; the limit is for those behind them.
        if len(self.waiting) >= self._max_waiting + len(self._free_slots):
            raise QueueFull(self._max_waiting, _RETRY_AFTER_S)

    def admit(self, request: Request) -> bool:
        """Move the first of the queue to the running ones; True if it never ran before."""
        assert self.waiting[0] is request
        self.waiting.popleft()
        self.running.append(request)
        request.slot = heapq.heappop(self._free_slots)
        if request.admitted:
            return False
        request.admitted = True
        _log.debug("request %s admitted: %d tokens", request.request_id, request.known)
        sampling = request.params.sampling
        hint = SamplingHint(temperature=sampling.temperature, seed=sampling.seed)
        chain = request.params.speculation.drafters
        self._drafting.begin(request.request_id, tuple(request.tokens), hint, chain)
        return True

    def preempt(self, request: Request) -> None:
        """Take everything from a running request but its tokens; it resumes by recomputing."""
        self.running.remove(request)
        self._give_back(request)
        request.computed = 0
        self.waiting.appendleft(request)

    def finish(self, request: Request, ending: Ending, reason: EndReason = "finished") -> None:
        """End a stream cleanly."""
        self._remove(request, reason)
        _log.debug(
            "request %s ended: %s after %d tokens",
            request.request_id,
            ending.reason.name,
            request.output.num_tokens,
        )
        usage = Usage(request.num_prompt_tokens, 0, request.output.num_tokens)
        request.mailbox.put_nowait(
            SequenceFinished(ending.reason, ending.matched_token_id, ending.matched_string)
        )
        request.mailbox.put_nowait(Finished(usage, request.tally.frozen()))
        request.mailbox.close()

    def fail(self, request: Request, error: SpecdError) -> None:
        """End a stream with an error. Harmless when it has ended."""
        if self._requests.get(request.request_id) is not request:
            return
        _log.warning("request %s fails: %s", request.request_id, error)
        self._remove(request, "failed")
        request.mailbox.close(error)

    def drop_ended(self) -> None:
        """Act on the ends that were asked for from outside since the last step."""
        for request in self.live():
            if request.end_cause is EndCause.ABORTED:
                self._abort(request)
            elif request.end_cause is EndCause.CANCELLED:
                self._remove(request, "cancelled")
                _log.debug("request %s was left by its reader", request.request_id)
                request.mailbox.close()

    def check_integrity(self) -> None:
        """Compare the page allocator with what live requests hold. Raises IntegrityError."""
        self.pages.check_integrity({request.request_id: request.pages for request in self.live()})

    def _abort(self, request: Request) -> None:
        request.output.flush()
        if text := request.output.take_text():
            request.mailbox.put_nowait(Delta(text, (), request.output.num_tokens))
        self.finish(request, Ending(FinishReason.ABORTED), "cancelled")

    def _remove(self, request: Request, reason: EndReason) -> None:
        """Forget a request and everything that it owns. Harmless when it is gone already."""
        if self._requests.get(request.request_id) is not request:
            return
        del self._requests[request.request_id]
        if request.slot is not None:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._give_back(request)
        if request.admitted:
            self._drafting.end(request.request_id, reason)

    def _give_back(self, request: Request) -> None:
        self.pages.release(request.pages)
        if request.slot is not None:
            heapq.heappush(self._free_slots, request.slot)
            request.slot = None
