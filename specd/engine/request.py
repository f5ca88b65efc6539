"""One request, one object, one owner: all mutable state of a generation. Changed by the loop only.

Two counters say everything about its progress: `known` tokens (prompt and committed answer) and
`computed` ones (their K and V are in the pages). A row of a step computes the tokens between them,
so a prompt, a chunk of one, a plain step, a verification and a resume are the same thing.
Invariant: computed < known while the request lives, and `pages` cover the computed positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from specd.engine.mailbox import Mailbox
from specd.engine.output import Output
from specd.engine.params import GenerationParams
from specd.engine.tally import Tally


class EndCause(Enum):
    """Why somebody outside the loop wants a request to end."""

    CANCELLED = auto()  # the reader is gone: nothing more is delivered
    ABORTED = auto()  # the stream ends cleanly with FinishReason.ABORTED


@dataclass(slots=True, eq=False)
class Request:
    """A live generation.

    tokens: known ids, prompt first; append-only. slot: its place in device tables, None while it
    waits. admitted: whether `Started` was sent. end_cause: set from outside, acted on by the loop.
    """

    request_id: str
    params: GenerationParams
    num_prompt_tokens: int
    tokens: list[int]
    output: Output
    arrived_s: float
    mailbox: Mailbox = field(default_factory=Mailbox)
    tally: Tally = field(default_factory=Tally)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    slot: int | None = None
    admitted: bool = False
    end_cause: EndCause | None = None

    @property
    def known(self) -> int:
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Known tokens that are not computed."""
        return self.known - self.computed

    @property
    def drafting(self) -> bool:
        """Whether a draft may ride along: one token pending, and the first answer token is out."""
        return self.pending == 1 and self.known > self.num_prompt_tokens
