"""Builds requests as the server would, and reads what comes out of their mailboxes.

The tokenizer is the toy one of 512 ids: 0 to 255 are single bytes, the last three are specials.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from benchmarks.toy_gguf import END_OF_TEXT, IM_END, IM_START, tokenizer_metadata, toy_vocabulary
from specd.engine.events import Delta, Event, Finished, FinishReason, SequenceFinished, Started
from specd.engine.generation import generation_of
from specd.engine.mailbox import Mailbox
from specd.engine.params import (
    GenerationParams,
    OutputParams,
    SamplingParams,
    SpeculationParams,
    StopParams,
)
from specd.engine.request import Request
from specd.engine.step_types import TokenLogprob
from specd.errors import SpecdError
from specd.structure.matching import SequenceStructure
from specd.text.tokenizer import Tokenizer

VOCAB_SIZE = 512
END_OF_TEXT_ID, IM_START_ID, EOS_ID = 509, 510, 511
OUTPUT_FIELDS = {field.name for field in fields(OutputParams)}


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
    min_new_tokens: int = 0,
    num_sequences: int = 1,
    structures: Sequence[SequenceStructure] = (),
    **more: Any,
) -> Request:
    """The first request of a generation that nobody has submitted.

    `structures`: one for each sequence, or none. `more`: any other field of SamplingParams and
    OutputParams.
    """
    output = {name: more.pop(name) for name in OUTPUT_FIELDS & more.keys()}
    params = GenerationParams(
        SamplingParams(seed=seed, **more),
        StopParams(
            max_new_tokens,
            stop_strings,
            frozenset(stop_token_ids),
            ignore_eos,
            include_stop,
            min_new_tokens,
        ),
        OutputParams(**output),
        SpeculationParams(drafters, max_draft_tokens, draft_budget_s),
        num_sequences=num_sequences,
    )
    generation = generation_of(
        request_id,
        params,
        prompt,
        toy_tokenizer(),
        context_left=context_left,
        arrived_s=0.0,
        structures=structures,
    )
    return generation.sequences[0]


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
    def logprobs(self) -> list[TokenLogprob]:
        return [one for delta in self.deltas for one in delta.logprobs]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def started(self) -> Started:
        first = self.events[0]
        assert isinstance(first, Started), self
        return first

    @property
    def finished(self) -> Finished:
        last = self.events[-1]
        assert isinstance(last, Finished), self
        return last

    @property
    def ends(self) -> list[SequenceFinished]:
        return [event for event in self.events if isinstance(event, SequenceFinished)]

    @property
    def reason(self) -> FinishReason:
        assert self.error is None, self.error
        (sequence,) = self.ends
        return sequence.reason

    @property
    def cut(self) -> bool:
        """Whether the stream ended without an end: only a reader that has left may see that."""
        return self.error is None and not (self.events and isinstance(self.events[-1], Finished))

    def sequence(self, index: int) -> Answer:
        """What was told of one sequence."""
        own = [
            event
            for event in self.events
            if isinstance(event, Started | Finished) or event.sequence_index == index
        ]
        return Answer(own, self.error)

    def check_order(self) -> None:
        """Started; per sequence deltas and one end; Finished. Only a failure or a leave cuts it."""
        kinds = [type(event) for event in self.events]
        assert Started not in kinds[1:]
        assert Finished not in kinds[:-1]
        assert not kinds or kinds[0] is Started
        indices = {delta.sequence_index for delta in self.deltas}
        ended = [end.sequence_index for end in self.ends]
        assert len(set(ended)) == len(ended)
        for index in indices | set(ended):
            self.sequence(index)._check_one(index in ended)
        if kinds and kinds[-1] is Finished:
            assert len(ended) == len(self.started.sequence_seeds)
            assert self.finished.usage.num_completion_tokens == len(self.token_ids)

    def _check_one(self, has_ended: bool) -> None:
        own = [event for event in self.events if isinstance(event, Delta | SequenceFinished)]
        assert not has_ended or isinstance(own[-1], SequenceFinished), "something follows its end"
        counts = [delta.num_completion_tokens for delta in self.deltas]
        assert counts == sorted(counts)
        assert counts[-1:] in ([], [len(self.token_ids)])
        for delta in self.deltas:
            assert not delta.logprobs or len(delta.logprobs) == len(delta.token_ids)


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
