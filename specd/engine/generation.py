"""What one call asked for: sequences that share a prompt, a mailbox, counts and an end.

A sequence is a `Request`, a row of its own in every step; here is what joins them. Changed by the
loop only, through `engine/book.py`.
Invariant: `live` holds the sequences that have not ended, in order; a generation is over exactly
when it holds none, and then its mailbox is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from specd.engine.events import Finished, Usage
from specd.engine.mailbox import Mailbox
from specd.engine.output import Output
from specd.engine.params import GenerationParams
from specd.engine.request import Request
from specd.engine.seeds import sequence_seed
from specd.engine.step_types import TokenLogprob
from specd.engine.tally import Tally
from specd.structure.matching import SequenceStructure
from specd.text.tokenizer import Tokenizer

# Not printable, so that no caller can choose such an id, and still seen in a log.
_BETWEEN = "\N{NO-BREAK SPACE}#"


class EndCause(Enum):
    """Why somebody outside the loop wants a generation to end."""

    CANCELLED = auto()  # the reader is gone: nothing more is delivered
    ABORTED = auto()  # the stream ends cleanly with FinishReason.ABORTED


@dataclass(slots=True, eq=False)
class Generation:
    """A live call.

    request_id: the caller's. admitted_s: when its first sequence was, None before. started: whether
    `Started` was sent. end_cause: set from outside, acted on by the loop.
    """

    request_id: str
    num_prompt_tokens: int
    arrived_s: float
    mailbox: Mailbox = field(default_factory=Mailbox)
    tally: Tally = field(default_factory=Tally)
    sequences: tuple[Request, ...] = ()
    live: list[Request] = field(default_factory=list)
    admitted_s: float | None = None
    started: bool = False
    end_cause: EndCause | None = None

    @property
    def ending(self) -> bool:
        """Whether nothing that is still computed for it counts."""
        return self.end_cause is not None or not self.live

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sequence.params.sampling.seed for sequence in self.sequences)

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        """One per prompt token; none where they are not asked for or not all computed."""
        first = self.sequences[0]
        found = first.prompt_logprobs
        if found is None or len(found) + 1 < self.num_prompt_tokens:
            return ()
        return (TokenLogprob(first.tokens[0], None, None), *found)

    def finished(self) -> Finished:
        """The last event. Drafts and tokens are those of all sequences, the prompt counts once."""
        num_completion = sum(sequence.output.num_tokens for sequence in self.sequences)
        return Finished(Usage(self.num_prompt_tokens, 0, num_completion), self.tally.frozen())


def generation_of(
    request_id: str,
    params: GenerationParams,
    prompt: Sequence[int],
    tokenizer: Tokenizer,
    *,
    context_left: int,
    arrived_s: float,
    structures: Sequence[SequenceStructure] = (),
) -> Generation:
    """A generation that nobody has submitted, with its sequences.

    Each is what a request of its own with the sequence's seed would be, but that the first alone
    scores the prompt. `context_left`: new tokens that fit the context, at least 1.
    `structures`: one for each sequence, or none.
    """
    generation = Generation(request_id, len(prompt), arrived_s)
    for index in range(params.num_sequences):
        sampling = replace(params.sampling, seed=sequence_seed(params.sampling.seed, index))
        generation.live.append(
            Request(
                request_id=f"{request_id}{_BETWEEN}{index}" if index else request_id,
                generation=generation,
                index=index,
                params=replace(params, sampling=sampling),
                num_prompt_tokens=len(prompt),
                tokens=list(prompt),
                output=Output(tokenizer, params.stop, params.output, context_left=context_left),
                structure=structures[index] if structures else None,
            )
        )
    generation.sequences = tuple(generation.live)
    return generation
