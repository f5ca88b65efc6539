"""What the handlers of all services share: nothing until the model is warm, then the rooms.

Knows how a prompt becomes a request. Invariant: no handler reaches an engine that does not serve.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import anyio.to_thread

from specd.device.boot import Booted
from specd.engine.loop import Engine
from specd.engine.output import Output
from specd.engine.request import Request
from specd.errors import ContextLengthExceeded, DeadlineTooShort, NotServing
from specd.server.admission import Admission
from specd.server.convert import GenerationCall, Limits
from specd.text.prompt import ChatPrompt, Prompt, TextPrompt

# So many take about a millisecond, ten times what the way to a thread and back does.
MANY_IDS = 1000
# The seconds that a call has left, None without a deadline.
Deadline = Callable[[], float | None]


@dataclass(frozen=True, slots=True)
class Rooms:
    """A serving daemon as its handlers see it. max_rows, max_waiting: for GetServerInfo."""

    engine: Engine
    admission: Admission
    booted: Booted
    limits: Limits
    weights: str
    max_rows: int
    max_waiting: int

    async def tokens_of(self, prompt: Prompt) -> list[int]:
        """Turn a prompt into ids, off the event loop: a long text takes tens of milliseconds.

        Raises:
            InvalidField: the chat template or the tokenizer refused it.
            ContextLengthExceeded: it leaves no room for a new token.
        """
        if isinstance(prompt, TextPrompt | ChatPrompt):
            ids = await anyio.to_thread.run_sync(self._encode, prompt)
        else:
            ids = list(prompt.token_ids)
        if len(ids) >= self.limits.context_length:
            raise ContextLengthExceeded(len(ids), self.limits.context_length)
        return ids

    async def text_of(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Turn ids into text; a long list, which takes a microsecond each, off the event loop."""
        decode = partial(self.booted.tokenizer.decode, ids, skip_special=skip_special)
        return await anyio.to_thread.run_sync(decode) if len(ids) > MANY_IDS else decode()

    def _check_deadline(self, num_tokens: int, time_left_s: float | None) -> None:
        needed_s = self.engine.pace.least_time_s(num_tokens)
        if time_left_s is not None and time_left_s <= needed_s:
            raise DeadlineTooShort(time_left_s, needed_s)

    def _encode(self, prompt: TextPrompt | ChatPrompt) -> list[int]:
        tokenizer = self.booted.tokenizer
        if isinstance(prompt, TextPrompt):
            return tokenizer.encode(
                prompt.text, parse_special=True, add_special=prompt.add_special_tokens
            )
        text = self.booted.template.render(prompt.messages)
        return tokenizer.encode(text, parse_special=True, add_special=False)

    async def submit(self, call: GenerationCall, deadline: Deadline) -> Request:
        """Tokenise a call and queue it. Raises RequestRefused, or OutOfPages for its prompt."""
        arrived_s = time.perf_counter()
        ids = await self.tokens_of(call.prompt)
        self._check_deadline(len(ids), deadline())
        params = call.params
        context_left = self.limits.context_length - len(ids)
        request = Request(
            request_id=call.request_id,
            params=params,
            num_prompt_tokens=len(ids),
            tokens=ids,
            output=Output(
                self.booted.tokenizer, params.stop, params.output, context_left=context_left
            ),
            arrived_s=arrived_s,
        )
        self.engine.submit(request)
        return request


class Front:
    """Holds the rooms once there are any."""

    def __init__(self) -> None:
        self._rooms: Rooms | None = None

    def open(self, rooms: Rooms) -> None:
        """Let the handlers in."""
        self._rooms = rooms

    @property
    def rooms(self) -> Rooms:
        """Raises NotServing until the model is warm."""
        if self._rooms is None:
            raise NotServing("the model is loading")
        return self._rooms
