"""What the handlers of all services share: nothing until the model is warm, then the rooms.

Knows how a prompt becomes a request. Invariant: no handler reaches an engine that does not serve.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from specd.device.boot import Booted
from specd.engine.loop import Engine
from specd.engine.output import Output
from specd.engine.request import Request
from specd.errors import ContextLengthExceeded, DeadlineTooShort, NotServing
from specd.server.admission import Admission
from specd.server.convert import GenerationCall, Limits
from specd.server.text_desk import TextDesk
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
    desk: TextDesk
    limits: Limits
    weights: str
    max_rows: int
    max_waiting: int

    async def tokens_of(self, prompt: Prompt) -> list[int]:
        """Turn a prompt into ids, off the event loop: a long text takes tens of milliseconds.

        Raises:
            InvalidField: the chat template or the tokenizer refused it.
            TooMuchText: too much waits already.
            ContextLengthExceeded: it leaves no room for a new token.
        """
        if isinstance(prompt, TextPrompt | ChatPrompt):
            num_bytes = self._size(prompt)
            ids = await self.desk.do(partial(self._encode, prompt), num_bytes)
        else:
            ids = list(prompt.token_ids)
        if len(ids) >= self.limits.context_length:
            raise ContextLengthExceeded(len(ids), self.limits.context_length)
        return ids

    async def text_of(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Turn ids into text; a long list, which takes a microsecond each, off the event loop.

        Raises:
            TooMuchText: too much waits already.
        """
        decode = partial(self.booted.tokenizer.decode, ids, skip_special=skip_special)
        return await self.desk.do(decode, 4 * len(ids)) if len(ids) > MANY_IDS else decode()

    def _size(self, prompt: TextPrompt | ChatPrompt) -> int:
        """Bytes of text. Raises ContextLengthExceeded where no tokens are long enough for them."""
        if isinstance(prompt, TextPrompt):
            num_bytes = len(prompt.text.encode())
            # A template may leave out parts of a chat, so there nothing is certain before.
            least = -(-num_bytes // self.booted.tokenizer.longest_token_bytes)
            if least >= self.limits.context_length:
                raise ContextLengthExceeded(least, self.limits.context_length, at_least=True)
            return num_bytes
        # A message costs the template about as much as so many bytes cost the tokenizer.
        return sum(100 + len(message.content.encode()) for message in prompt.messages)

    def _check_deadline(self, num_tokens: int, time_left_s: float | None) -> None:
        if time_left_s is None:
            return
        needed_s = self.engine.pace.hopeless_s(num_tokens, time_left_s)
        if needed_s is not None:
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
        with self.engine.expecting(call.request_id):
            ids = await self.tokens_of(call.prompt)
            self._check_deadline(len(ids), deadline())
            return self._queue(call, ids, arrived_s)

    def _queue(self, call: GenerationCall, ids: list[int], arrived_s: float) -> Request:
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
