"""One request, one object, one owner: all mutable state of a sequence. Changed by the loop only.

Two counters say everything about its progress: `known` tokens (prompt and committed answer) and
`computed` ones (their K and V are in the pages). A row of a step computes the tokens between them,
so a prompt, a chunk of one, a plain step, a verification and a resume are the same thing.
Invariant: computed < known while the request lives, and `pages` cover the computed positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specd.engine.output import Output
from specd.engine.params import GenerationParams
from specd.engine.step_types import Choosing, TokenLogprob
from specd.engine.token_counts import TokenCounts

if TYPE_CHECKING:
    from specd.engine.generation import Generation
    from specd.structure.matching import SequenceStructure


@dataclass(slots=True, eq=False)
class Request:
    """A live sequence of a generation.

    request_id: the caller's for the first sequence, unique for every other. index: which sequence.
    params: those of the generation, with the sequence's own seed. tokens: known ids, prompt first;
    append-only. structure: of the answer, None for free text. choosing: how tokens are chosen, less
    what changes from step to step; choosing_changes: whether anything does. prompt_logprobs: those
    of the second prompt token on, None where they are not asked for. counts: None where nothing is
    penalised, and before the first token. slot: its place in device tables, None while it waits.
    admitted: whether it ever ran.
    """

    request_id: str
    generation: Generation
    index: int
    params: GenerationParams
    num_prompt_tokens: int
    tokens: list[int]
    output: Output
    structure: SequenceStructure | None = None
    choosing: Choosing = field(init=False)
    choosing_changes: bool = field(init=False)
    prompt_logprobs: list[TokenLogprob] | None = field(init=False)
    counts: TokenCounts | None = None
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    slot: int | None = None
    admitted: bool = False

    def __post_init__(self) -> None:
        sampling, output = self.params.sampling, self.params.output
        is_endless = self.output.num_endless > 0
        self.choosing_changes = sampling.penalises or is_endless or self.structure is not None
        self.choosing = Choosing(
            sampling,
            banned=self.output.ending_ids() if is_endless else (),
            top_logprobs=output.top_logprobs,
            processed_logprobs=output.processed_logprobs,
        )
        is_scored = output.prompt_logprobs is not None and self.index == 0
        self.prompt_logprobs = [] if is_scored else None

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

    @property
    def scoring(self) -> bool:
        """Whether the log probabilities of its prompt are wanted and not told.

        They need the logits of every prompt position, so nothing of the prompt may come out of a
        cache of K and V.
        """
        return self.prompt_logprobs is not None and not self.generation.started

    def restart(self) -> None:
        """Forget what was computed; the known tokens, and all that follows from them, stay."""
        self.computed = 0
        if self.prompt_logprobs is not None and self.scoring:
            self.prompt_logprobs.clear()
