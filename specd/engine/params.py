"""What a request asks for, validated and resolved. Made by `server/convert.py`, read everywhere.

Invariant: every value here is legal; defaults are already filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from the logits of its position.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off. min_p: 0 is off.
    seed: unsigned 64-bit; drawn at admission where the caller gave none.
    repetition_penalty: 1 is off; looks at prompt and answer. presence_penalty, frequency_penalty:
    0 is off; look at the answer alone. logit_bias: (token id, what is added), by ascending id.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def penalises(self) -> bool:
        """Whether tokens that were seen before have other logits."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return penalties != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class StopParams:
    """When a generation ends. `max_new_tokens` None runs to the end of the context.

    min_new_tokens: before so many, end and stop tokens cannot be chosen and stop strings do not
    count.
    """

    max_new_tokens: int | None = None
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    include_stop_string: bool = False
    min_new_tokens: int = 0


@dataclass(frozen=True, slots=True)
class OutputParams:
    """What the deltas of a stream carry.

    top_logprobs, prompt_logprobs: alternatives per generated token and per prompt token, 0 gives
    the token's own log probability alone, None none at all. processed_logprobs: those of generated
    tokens are of the distribution that the token was drawn from, not of the model's own.
    """

    text: bool = True
    token_ids: bool = False
    skip_special_tokens: bool = True
    speculation_steps: bool = False
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    processed_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Which drafters a request uses, in order of preference; empty is plain decoding.

    draft_budget_s: a deadline in seconds that the request grants its drafters, None for the
    daemon's own.
    """

    drafters: tuple[str, ...] = ()
    max_draft_tokens: int = 0
    draft_budget_s: float | None = None


@dataclass(frozen=True, slots=True)
class StructureParams:
    """A form that the answer must have. `values`: the text of the constraint, or all choices."""

    kind: Literal["json_schema", "regex", "lark", "choice"]
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """All of the above. num_sequences: independent answers, each with a seed of its own."""

    sampling: SamplingParams
    stop: StopParams
    output: OutputParams
    speculation: SpeculationParams
    structure: StructureParams | None = None
    num_sequences: int = 1
