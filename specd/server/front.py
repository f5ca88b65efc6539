"""What the handlers of all services share: nothing until the model is warm, then the rooms.

Knows how a prompt becomes a request. Invariant: no handler reaches an engine that does not serve.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from specd.device.boot import Booted
from specd.engine.generation import Generation, generation_of
from specd.engine.loop import Engine
from specd.engine.params import GenerationParams
from specd.errors import ContextLengthExceeded, DeadlineTooShort, InvalidField, NotServing
from specd.server.admission import Admission
from specd.server.convert import GenerationCall, Limits
from specd.server.message_sizes import check_logprobs_fit
from specd.server.text_desk import TextDesk
from specd.structure.matching import SequenceStructure
from specd.structure.workshop import Workshop
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
    workshop: Workshop
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

    async def submit(self, call: GenerationCall, deadline: Deadline) -> Generation:
        """Tokenise a call and queue it. Raises RequestRefused, or OutOfPages for its prompt."""
        arrived_s = time.perf_counter()
        num_sequences = call.params.num_sequences
        self._check_num_sequences(num_sequences)
        with self.engine.expecting(call.request_id, num_sequences):
            ids = await self.tokens_of(call.prompt)
            check_logprobs_fit(call, len(ids), self.limits)
            self._check_deadline(len(ids), deadline())
            structures = await self._structures(call.params)
            try:
                return self._queue(call, ids, structures, arrived_s)
            except BaseException:
                for structure in structures:
                    structure.close()
                raise

    async def _structures(self, params: GenerationParams) -> list[SequenceStructure]:
        if params.structure is None:
            return []
        return await self.workshop.make(params.structure, params.num_sequences)

    def _check_num_sequences(self, number: int) -> None:
        most = self.max_rows + self.max_waiting
        if number > most:  # to wait until the queue is empty would not help
            problem = f"this daemon holds at most {most} sequences at once"
            raise InvalidField("sampling.num_sequences", problem)

    def _queue(
        self,
        call: GenerationCall,
        ids: list[int],
        structures: Sequence[SequenceStructure],
        arrived_s: float,
    ) -> Generation:
        generation = generation_of(
            call.request_id,
            call.params,
            ids,
            self.booted.tokenizer,
            context_left=self.limits.context_length - len(ids),
            arrived_s=arrived_s,
            structures=structures,
        )
        self.engine.submit(generation)
        return generation


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
