"""What fits one message, so that nothing is computed that cannot be sent.

gRPC drops a larger message behind the computation, with a status that is none of ours. Knows how
large log probabilities are on the wire. Invariant: those that `check_logprobs_fit` lets through
fit, whatever they come to. The size of texts and ids nobody knows before; `wire.WholeAnswer` counts
it.
"""

from __future__ import annotations

from specd_client.v1 import generation_pb2 as pb

from specd.errors import InvalidField
from specd.server.convert import GenerationCall, Limits

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# What does not grow with tokens has 128 KiB: 16 matched stop strings, names, statistics by drafter.
TOKEN_BYTES = MAX_MESSAGE_BYTES - 128 * 1024


def check_logprobs_fit(call: GenerationCall, num_prompt_tokens: int, limits: Limits) -> None:
    """Raises InvalidField for log probabilities that may need more than one message.

    Those of a prompt come in one, `Started`. Those of an answer do in Generate alone: a delta of a
    stream has some thousand tokens at most.
    """
    output, room = call.params.output, TOKEN_BYTES
    if output.prompt_logprobs is not None:
        each = _entry_bytes(output.prompt_logprobs, limits.vocab_size)
        if num_prompt_tokens * each > room:
            problem = _problem(num_prompt_tokens, output.prompt_logprobs, room // each)
            raise InvalidField("output.prompt_logprobs", problem)
        room -= num_prompt_tokens * each
    if call.whole and output.top_logprobs is not None:
        num_tokens = _most_new_tokens(call, limits.context_length - num_prompt_tokens)
        each = _entry_bytes(output.top_logprobs, limits.vocab_size)
        if num_tokens * each > room:
            problem = _problem(num_tokens, output.top_logprobs, room // each)
            advice = "set stop.max_new_tokens or use StreamGenerate"
            raise InvalidField("output.top_logprobs", f"{problem}; {advice}")


def _most_new_tokens(call: GenerationCall, context_left: int) -> int:
    """Over all sequences."""
    asked = call.params.stop.max_new_tokens
    each = context_left if asked is None else min(asked, context_left)
    return each * call.params.num_sequences


def _entry_bytes(num_alternatives: int, vocab_size: int) -> int:
    """The most that one entry of a repeated TokenLogprob takes."""
    alternative = pb.Alternative(token_id=vocab_size - 1, logprob=-1.0)
    entry = pb.TokenLogprob(
        token_id=vocab_size - 1,
        logprob=-1.0,
        rank=vocab_size,
        alternatives=[alternative] * num_alternatives,
    )
    return pb.Delta(logprobs=[entry]).ByteSize()


def _problem(num_tokens: int, num_alternatives: int, most: int) -> str:
    return (
        f"{num_tokens} tokens with {num_alternatives} alternatives each do not fit one message; "
        f"at most {most}"
    )
