"""What a request asks for, validated and resolved. Made by `server/convert.py`, read everywhere.

Invariant: every value here is legal; defaults are already filled in.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from the logits of its position.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off. min_p: 0 is off.
    seed: unsigned 64-bit; drawn at admission where the caller gave none.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StopParams:
    """When a generation ends. `max_new_tokens` None runs to the end of the context."""

    max_new_tokens: int | None = None
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    include_stop_string: bool = False


@dataclass(frozen=True, slots=True)
class OutputParams:
    """What the deltas of a stream carry."""

    text: bool = True
    token_ids: bool = False
    skip_special_tokens: bool = True
    speculation_steps: bool = False


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
class GenerationParams:
    """All of the above."""

    sampling: SamplingParams
    stop: StopParams
    output: OutputParams
    speculation: SpeculationParams
