"""SamplingParams and StopParams -> domain: how tokens are chosen, and when a generation ends.

Knows the ranges that the protos state. Invariant: as in `convert.py`, whatever a caller sets is in
the result or refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from specd_client.v1 import types_pb2

from specd.engine.params import SamplingParams, StopParams
from specd.errors import InvalidField
from specd.server.fields import token_ids_from, value_or

MAX_TOP_K = 2**31 - 1
# A logit divided by a number near 0 is infinite in fp32.
# 0.01 as the wire carries it, in 32 bits: a little below.
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.009999999776482582, 100.0
MAX_PENALTY = 100.0
MAX_BIASES = 1024
MAX_BIAS = 1000.0
MAX_SEQUENCES = 16
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256


class Tokens(NamedTuple):
    """What the ranges of some fields depend on. end_ids: the model's own end tokens."""

    vocab_size: int
    context_length: int
    end_ids: frozenset[int]


def sampling_from(
    message: types_pb2.SamplingParams, *, vocab_size: int, draw_seed: Callable[[], int]
) -> SamplingParams:
    """Returns the parameters with defaults filled in. Raises InvalidField."""
    temperature = value_or(message, "temperature", 1.0)
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InvalidField("sampling.temperature", "must be finite and at least 0")
    top_p = value_or(message, "top_p", 1.0)
    if not 0 < top_p <= 1:
        raise InvalidField("sampling.top_p", "must be above 0 and at most 1")
    return SamplingParams(
        temperature=temperature,
        top_k=_top_k(message, vocab_size),
        top_p=top_p,
        min_p=_between("sampling.min_p", value_or(message, "min_p", 0.0), 0, 1),
        seed=message.seed if message.HasField("seed") else draw_seed(),
        repetition_penalty=_repetition_penalty(message),
        presence_penalty=_penalty(message, "presence_penalty"),
        frequency_penalty=_penalty(message, "frequency_penalty"),
        logit_bias=_logit_bias(message.logit_bias, vocab_size),
    )


def num_sequences_from(message: types_pb2.SamplingParams) -> int:
    """Returns how many answers are wanted. Raises InvalidField."""
    num_sequences = value_or(message, "num_sequences", 1)
    if not 1 <= num_sequences <= MAX_SEQUENCES:
        raise InvalidField("sampling.num_sequences", f"must be between 1 and {MAX_SEQUENCES}")
    return num_sequences


def stop_from(message: types_pb2.StopParams, tokens: Tokens) -> StopParams:
    """Returns the parameters with defaults filled in. Raises InvalidField."""
    max_new_tokens = message.max_new_tokens if message.HasField("max_new_tokens") else None
    if max_new_tokens == 0:
        raise InvalidField("stop.max_new_tokens", "must be at least 1")
    if len(message.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidField("stop.stop_token_ids", f"more than {MAX_STOP_TOKEN_IDS}")
    ids = token_ids_from("stop.stop_token_ids", message.stop_token_ids, tokens.vocab_size)
    stop = StopParams(
        max_new_tokens=max_new_tokens,
        stop_strings=_stop_strings(message.stop_strings),
        stop_token_ids=frozenset(ids),
        ignore_eos=message.ignore_eos,
        include_stop_string=message.include_stop_string,
        min_new_tokens=message.min_new_tokens,
    )
    if stop.min_new_tokens:
        _check_min_new_tokens(stop, tokens)
    return stop


def _top_k(message: types_pb2.SamplingParams, vocab_size: int) -> int:
    if message.top_k > MAX_TOP_K:
        raise InvalidField("sampling.top_k", f"must be at most {MAX_TOP_K}")
    return message.top_k if message.top_k < vocab_size else 0


def _repetition_penalty(message: types_pb2.SamplingParams) -> float:
    penalty = value_or(message, "repetition_penalty", 1.0)
    low, high = MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY
    return _between("sampling.repetition_penalty", penalty, low, high)


def _penalty(message: types_pb2.SamplingParams, name: str) -> float:
    penalty = value_or(message, name, 0.0)
    return _between(f"sampling.{name}", penalty, -MAX_PENALTY, MAX_PENALTY)


def _between(field: str, value: float, low: float, high: float) -> float:
    """Also refuses NaN, which is between nothing."""
    if not low <= value <= high:
        raise InvalidField(field, f"must be between {low:g} and {high:g}")
    return value


def _logit_bias(biases: Mapping[int, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    if len(biases) > MAX_BIASES:
        raise InvalidField("sampling.logit_bias", f"more than {MAX_BIASES}")
    found = tuple(sorted(biases.items()))
    for token_id, bias in found:
        path = f"sampling.logit_bias[{token_id}]"
        if token_id >= vocab_size:
            raise InvalidField(path, f"the id is outside the vocabulary of {vocab_size}")
        _between(path, bias, -MAX_BIAS, MAX_BIAS)
    return found


def _stop_strings(strings: Sequence[str]) -> tuple[str, ...]:
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidField("stop.stop_strings", f"more than {MAX_STOP_STRINGS}")
    for index, string in enumerate(strings):
        if not 1 <= len(string) <= MAX_STOP_STRING_CHARS:
            raise InvalidField(
                f"stop.stop_strings[{index}]",
                f"must have 1 to {MAX_STOP_STRING_CHARS} characters, has {len(string)}",
            )
    return tuple(strings)


def _check_min_new_tokens(stop: StopParams, tokens: Tokens) -> None:
    """Raises InvalidField for more than can ever come, and where nothing could be chosen."""
    if stop.max_new_tokens is not None and stop.min_new_tokens > stop.max_new_tokens:
        raise InvalidField("stop.min_new_tokens", f"above max_new_tokens, {stop.max_new_tokens}")
    if stop.min_new_tokens >= tokens.context_length:
        raise InvalidField(
            "stop.min_new_tokens",
            f"a prompt of one token leaves room for {tokens.context_length - 1}, not for so many",
        )
    ends = frozenset[int]() if stop.ignore_eos else tokens.end_ids
    if len(ends | stop.stop_token_ids) >= tokens.vocab_size:
        raise InvalidField(
            "stop.min_new_tokens", "every token of the vocabulary is an end or a stop"
        )
