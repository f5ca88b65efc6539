"""Builds requests as the server would, and reads what comes out of their mailboxes.

The tokenizer is the toy one of 512 ids: 0 to 255 are single bytes, the last three are specials.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache

from specd.engine.events import Delta, Event, Finished, FinishReason, SequenceFinished, Started
from specd.engine.mailbox import Mailbox
from specd.engine.output import Output
from specd.engine.params import (
    GenerationParams,
    OutputParams,
    SamplingParams,
    SpeculationParams,
    StopParams,
)
from specd.engine.request import Request
from specd.errors import SpecdError
from specd.text.tokenizer import Tokenizer
from tests.support.toy_gguf import END_OF_TEXT, IM_END, IM_START, tokenizer_metadata, toy_vocabulary

VOCAB_SIZE = 512
END_OF_TEXT_ID, IM_START_ID, EOS_ID = 509, 510, 511


@cache
def toy_tokenizer() -> Tokenizer:
    """The toy tokenizer; `EOS_ID` and `END_OF_TEXT_ID` end a generation."""
    vocabulary = toy_vocabulary(VOCAB_SIZE)
    ids = [vocabulary.id_of(token) for token in (END_OF_TEXT, IM_START, IM_END)]
    assert ids == [END_OF_TEXT_ID, IM_START_ID, EOS_ID]
    return Tokenizer.from_gguf(tokenizer_metadata(vocabulary))


def make_request(
    request_id: str = "a",
    prompt: Sequence[int] = (1, 2, 3),
    *,
    seed: int = 0,
    max_new_tokens: int | None = 8,
    context_left: int = 4096,
    drafters: tuple[str, ...] = (),
    max_draft_tokens: int = 8,
    draft_budget_s: float | None = None,
    stop_strings: tuple[str, ...] = (),
    stop_token_ids: Collection[int] = (),
    ignore_eos: bool = False,
    include_stop: bool = False,
) -> Request:
    """A request that nobody has submitted."""
    stop = StopParams(
        max_new_tokens, stop_strings, frozenset(stop_token_ids), ignore_eos, include_stop
    )
    params = GenerationParams(
        SamplingParams(seed=seed),
        stop,
        OutputParams(),
        SpeculationParams(drafters, max_draft_tokens, draft_budget_s),
    )
    return Request(
        request_id=request_id,
        params=params,
        num_prompt_tokens=len(prompt),
        tokens=list(prompt),
        output=Output(toy_tokenizer(), stop, params.output, context_left=context_left),
        arrived_s=0.0,
    )


@dataclass(slots=True)
class Answer:
    """Everything that a reader got. `error`: what ended the stream, None for a clean end."""

    events: list[Event] = field(default_factory=list)
    error: SpecdError | None = None

    @property
    def deltas(self) -> list[Delta]:
        return [event for event in self.events if isinstance(event, Delta)]

    @property
    def token_ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def finished(self) -> Finished:
        last = self.events[-1]
        assert isinstance(last, Finished), self
        return last

    @property
    def reason(self) -> FinishReason:
        assert self.error is None, self.error
        (sequence,) = [event for event in self.events if isinstance(event, SequenceFinished)]
        return sequence.reason

    @property
    def cut(self) -> bool:
        """Whether the stream ended without an end: only a reader that has left may see that."""
        return self.error is None and not (self.events and isinstance(self.events[-1], Finished))

    def check_order(self) -> None:
        """Started, deltas, SequenceFinished, Finished; each exactly once; an end may cut it."""
        kinds = [type(event) for event in self.events if not isinstance(event, Delta)]
        expected = [Started, SequenceFinished, Finished]
        if self.error is None and not self.cut:
            assert kinds == expected, kinds
            assert isinstance(self.events[-2], SequenceFinished)
            assert self.finished.usage.num_completion_tokens == len(self.token_ids)
        else:
            assert kinds == expected[: len(kinds)] and len(kinds) < 2, kinds
        assert not self.events or isinstance(self.events[0], Started)
        counts = [delta.num_completion_tokens for delta in self.deltas]
        assert counts == sorted(counts)


async def read_all(mailbox: Mailbox) -> Answer:
    """Read a stream to its end, and check that its events are in order."""
    answer = Answer()
    try:
        async for event in mailbox:
            answer.events.append(event)
    except SpecdError as error:
        answer.error = error
    answer.check_order()
    return answer
