"""OutputParams and StructureParams -> domain: what answers carry, and the form that they must have.

Knows the ranges that the protos state; leaves to the structure itself whether a schema or grammar
makes sense. Invariant: as in `convert.py`, whatever a caller sets is in the result or refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from google.protobuf.message import Message
from specd_client.v1 import types_pb2

from specd.engine.params import OutputParams, StopParams, StructureParams
from specd.errors import InvalidField
from specd.server.fields import check_enum, value_or

MAX_ALTERNATIVES = 20
MAX_CHOICES = 1024
# Compiling costs time and memory that grow faster than the text.
MAX_STRUCTURE_BYTES = 256 * 1024


def output_from(message: types_pb2.OutputParams) -> OutputParams:
    """Returns the parameters with defaults filled in. Raises InvalidField."""
    basis = message.logprob_basis
    check_enum("output.logprob_basis", basis, types_pb2.LogprobBasis.values())
    top_logprobs = _alternatives(message, "top_logprobs")
    if basis and top_logprobs is None:
        raise InvalidField("output.logprob_basis", "says nothing without top_logprobs")
    return OutputParams(
        text=value_or(message, "text", True),
        token_ids=message.token_ids,
        skip_special_tokens=value_or(message, "skip_special_tokens", True),
        speculation_steps=message.speculation_steps,
        top_logprobs=top_logprobs,
        prompt_logprobs=_alternatives(message, "prompt_logprobs"),
        processed_logprobs=basis == types_pb2.LOGPROB_BASIS_PROCESSED,
    )


def structure_from(message: types_pb2.StructureParams) -> StructureParams:
    """Returns the one constraint. Raises InvalidField."""
    match message.WhichOneof("constraint"):
        case "json_schema":
            return StructureParams("json_schema", _text("json_schema", message.json_schema))
        case "regex":
            return StructureParams("regex", _text("regex", message.regex))
        case "grammar":
            return StructureParams("lark", _text("grammar", message.grammar))
        case "choice":
            return StructureParams("choice", _choices(message.choice.values))
        case _:
            raise InvalidField("structure", "set one of json_schema, regex, grammar and choice")


def check_stops_fit(stop: StopParams) -> None:
    """Raises InvalidField for stops that contradict a structure, whose end is its own."""
    if stop.min_new_tokens:
        raise InvalidField("stop.min_new_tokens", "contradicts structure, which decides its end")
    if stop.ignore_eos:
        raise InvalidField(
            "stop.ignore_eos", "contradicts structure, whose answers end with an end token"
        )


def _alternatives(message: types_pb2.OutputParams, name: str) -> int | None:
    """The number of alternatives, of which 0 is one; None where it is unset."""
    if not cast(Message, message).HasField(name):
        return None
    number: int = getattr(message, name)
    if number > MAX_ALTERNATIVES:
        raise InvalidField(f"output.{name}", f"must be at most {MAX_ALTERNATIVES}")
    return number


def _text(name: str, text: str) -> tuple[str]:
    if not text:
        raise InvalidField(f"structure.{name}", "is empty")
    _check_size(f"structure.{name}", [text])
    return (text,)


def _choices(values: Sequence[str]) -> tuple[str, ...]:
    field = "structure.choice.values"
    if not 1 <= len(values) <= MAX_CHOICES:
        raise InvalidField(field, f"must be 1 to {MAX_CHOICES}, are {len(values)}")
    _check_size(field, values)
    seen = set[str]()
    for index, value in enumerate(values):
        if not value:
            raise InvalidField(f"{field}[{index}]", "is empty")
        if value in seen:
            raise InvalidField(f"{field}[{index}]", f"is {value!r} again")
        seen.add(value)
    return tuple(values)


def _check_size(field: str, texts: Sequence[str]) -> None:
    num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > MAX_STRUCTURE_BYTES:
        raise InvalidField(field, f"has {num_bytes} bytes, more than {MAX_STRUCTURE_BYTES}")
