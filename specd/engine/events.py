"""What a generation tells its reader. Made by the loop, put on the wire by `server/wire.py`.

Knows nothing of gRPC and nothing of which fields the reader asked for.

Invariant, per request: `Started`, then per sequence any number of `Delta` and one
`SequenceFinished`, then `Finished`; or an error from `specd.errors` at any place, and nothing
behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from specd.engine.step_types import TokenLogprob


class FinishReason(Enum):
    """Why a sequence ended. A failure is an exception, never a reason."""

    EOS_TOKEN = auto()
    STOP_TOKEN = auto()
    STOP_STRING = auto()
    MAX_TOKENS = auto()
    CONTEXT_LENGTH = auto()
    ABORTED = auto()


@dataclass(frozen=True, slots=True)
class Started:
    """The request is admitted. queue_time_s: from arrival to admission.

    sequence_seeds: the seed of each sequence; a request of its own with it gives the same tokens.
    prompt_logprobs: one per prompt token where asked for; then the prompt is computed before.
    """

    request_id: str
    model: str
    num_prompt_tokens: int
    num_cached_prompt_tokens: int
    seed: int
    queue_time_s: float
    fingerprint: str
    sequence_seeds: tuple[int, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeculationStep:
    """One step of a request. drafter: None for a plain step."""

    drafter: str | None
    num_draft_tokens: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens: one accepted run, or several where the reader was behind.

    text, token_ids and logprobs are new, num_completion_tokens is cumulative, of one sequence.
    """

    text: str
    token_ids: tuple[int, ...]
    num_completion_tokens: int
    steps: tuple[SpeculationStep, ...] = ()
    sequence_index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceFinished:
    """The sequence is complete. At most one of the matches is set."""

    reason: FinishReason
    matched_token_id: int | None = None
    matched_string: str | None = None
    sequence_index: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a whole request."""

    num_prompt_tokens: int
    num_cached_prompt_tokens: int
    num_completion_tokens: int


@dataclass(frozen=True, slots=True)
class DrafterTally:
    """Counts over steps of one request. Times in seconds.

    sum(h) == verify_steps and sum(i * h[i]) == accepted_draft_tokens, h the histogram.
    """

    verify_steps: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    accepted_length_histogram: tuple[int, ...] = ()
    pad_positions: int = 0
    late: int = 0
    faults: int = 0
    draft_time_s: float = 0.0
    verify_time_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """total: every step that sampled. by_drafter: the steps that verified a draft, by its maker."""

    total: DrafterTally
    by_drafter: Mapping[str, DrafterTally] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """The request is complete; nothing follows."""

    usage: Usage
    speculation: SpeculationStats


Event = Started | Delta | SequenceFinished | Finished
