"""Python options -> messages.

Knows which option fills which field; knows no default, limit or rule: the server has these.

Invariant: every option that is given reaches its field, and an unknown one is a TypeError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, get_args

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError

from specd_client.times import duration
from specd_client.v1 import generation_pb2, model_pb2, types_pb2

LogprobBasis = Literal["RAW", "PROCESSED"]
Request = generation_pb2.StreamGenerateRequest | model_pb2.TokenizeRequest


class PromptOptions(TypedDict, total=False):
    """Options of a prompt. None is the same as leaving one out: the server's default."""

    model: str | None
    add_special_tokens: bool | None
    tools: Sequence[Mapping[str, Any]] | None
    template_arguments: Mapping[str, Any] | None


class Options(PromptOptions, total=False):
    """Options of a generation. None is the same as leaving one out: the server's default.

    Named as on the wire, but: return_text, return_token_ids and return_steps choose what deltas
    carry; speculation False decodes plainly; draft_budget_s is in seconds; prediction is text or
    token ids; json_schema is JSON text or what becomes it. timeout_s ends the whole call.
    """

    request_id: str | None
    priority: int | None
    tenant: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    num_sequences: int | None
    max_new_tokens: int | None
    min_new_tokens: int | None
    stop_strings: Sequence[str] | None
    stop_token_ids: Iterable[int] | None
    ignore_eos: bool | None
    include_stop_string: bool | None
    return_text: bool | None
    return_token_ids: bool | None
    return_steps: bool | None
    top_logprobs: int | None
    prompt_logprobs: int | None
    logprob_basis: LogprobBasis | None
    skip_special_tokens: bool | None
    speculation: bool | None
    drafters: Sequence[str] | None
    max_draft_tokens: int | None
    draft_budget_s: float | None
    prediction: str | Sequence[int] | None
    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    grammar: str | None
    choice: Sequence[str] | None


PLAIN = {
    "": ("request_id", "model", "priority", "tenant"),
    "input": ("add_special_tokens",),
    "sampling": (
        *("temperature", "top_p", "top_k", "min_p", "seed", "num_sequences", "logit_bias"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    ),
    "stop": (
        *("max_new_tokens", "min_new_tokens", "stop_strings", "stop_token_ids"),
        *("ignore_eos", "include_stop_string"),
    ),
    "output": ("top_logprobs", "prompt_logprobs", "skip_special_tokens"),
    "speculation": ("drafters", "max_draft_tokens"),
    "structure": ("regex", "grammar"),
}
ONLY_CHAT = ("tools", "template_arguments")
# An object is three levels of messages on the wire, a list two, and parsers take a hundred.
# A parser takes 100 levels, and a level of JSON is two or three.
MIN_TOO_DEEP = 30
TOO_DEEP = "{} is nested deeper than protobuf takes, about 30 levels of objects"
STRUCTURES = ("json_schema", "regex", "grammar", "choice")
PLACES = {name: (part, name) for part, names in PLAIN.items() for name in names} | {
    "return_text": ("output", "text"),
    "return_token_ids": ("output", "token_ids"),
    "return_steps": ("output", "speculation_steps"),
}


def request_from(
    text: str | None,
    token_ids: Iterable[int] | None,
    messages: Iterable[Mapping[str, str]] | None,
    options: Mapping[str, Any],
) -> generation_pb2.StreamGenerateRequest:
    """Returns the request.

    Raises TypeError for an unknown option, not exactly one prompt, and options that exclude each
    other; ValueError for times and nesting that the protocol cannot hold.
    """
    request = generation_pb2.StreamGenerateRequest()
    _fill(request, text, token_ids, messages, options)
    return request


def tokenize_request_from(
    text: str | None,
    token_ids: Iterable[int] | None,
    messages: Iterable[Mapping[str, str]] | None,
    options: Mapping[str, Any],
) -> model_pb2.TokenizeRequest:
    """Returns the request. Raises TypeError for an unknown option or not exactly one prompt."""
    request = model_pb2.TokenizeRequest()
    if unknown := options.keys() - PromptOptions.__annotations__.keys():
        raise TypeError(f"unknown option {min(unknown)!r}")
    _fill(request, text, token_ids, messages, options)
    return request


def _fill(
    request: Request,
    text: str | None,
    token_ids: Iterable[int] | None,
    messages: Iterable[Mapping[str, str]] | None,
    options: Mapping[str, Any],
) -> None:
    if sum(form is not None for form in (text, token_ids, messages)) != 1:
        raise TypeError("give exactly one of text, token_ids and messages")
    if text is not None:
        request.input.text = text
    elif token_ids is not None:
        request.input.tokens.SetInParent()
        request.input.tokens.ids.extend(token_ids)
    else:
        request.input.chat.SetInParent()
        request.input.chat.messages.extend(
            types_pb2.ChatMessage(**message) for message in messages or ()
        )
    given = {name: value for name, value in options.items() if value is not None}
    _check_together(given, is_chat=messages is not None)
    for name, value in given.items():
        _set_option(request, name, value)
        if name in ONLY_CHAT:
            _check_depth(name, request)


def _check_together(given: Mapping[str, Any], *, is_chat: bool) -> None:
    """Raises TypeError for options of which protobuf would silently keep the last."""
    if not is_chat and (misplaced := [name for name in ONLY_CHAT if name in given]):
        raise TypeError(f"{misplaced[0]} goes with messages")
    if len(structures := [name for name in STRUCTURES if name in given]) > 1:
        raise TypeError(f"give one of {' and '.join(structures)}")


def _set_option(request: Any, name: str, value: Any) -> None:
    if name in PLACES:
        part, field = PLACES[name]
        _set(getattr(request, part) if part else request, field, value)
        return
    match name:
        case "speculation":
            request.speculation.mode = (
                types_pb2.SPECULATION_MODE_ENABLED if value else types_pb2.SPECULATION_MODE_DISABLED
            )
        case "draft_budget_s":
            request.speculation.draft_budget.CopyFrom(duration(name, value))
        case "prediction" if isinstance(value, str):
            request.speculation.prediction.text = value
        case "prediction":
            request.speculation.prediction.tokens.ids.extend(value)
        case "logprob_basis":
            request.output.logprob_basis = _basis(value)
        case "json_schema":
            request.structure.json_schema = value if isinstance(value, str) else _json(name, value)
        case "choice":
            _set(request.structure.choice, "values", value)
        case "tools":
            for tool in value:
                _set_json(name, request.input.chat.tools.add(), tool)
        case "template_arguments":
            _set_json(name, request.input.chat.template_arguments, value)
        case _:
            raise TypeError(f"unknown option {name!r}")


def _basis(name: object) -> types_pb2.LogprobBasis.ValueType:
    if name not in get_args(LogprobBasis):
        raise TypeError(f"logprob_basis takes {' or '.join(get_args(LogprobBasis))}, not {name!r}")
    return types_pb2.LogprobBasis.Value(f"LOGPROB_BASIS_{name}")


def _json(name: str, value: Any) -> str:
    """JSON text of a value; the order of keys stays, since it is the order of an answer's."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise TypeError(f"{name}: {error}") from None


def _set_json(name: str, message: Any, value: Any) -> None:
    """Fills a Struct."""
    try:
        ParseDict(value, message)
    except (ParseError, RecursionError) as error:
        # Some versions of protobuf say that a value is too deep as they say that it is no JSON.
        if _is_deeper_than(value, MIN_TOO_DEEP):
            raise ValueError(TOO_DEEP.format(name)) from None
        raise TypeError(f"{name}: {error}") from None


def _is_deeper_than(value: Any, num_levels: int) -> bool:
    if not isinstance(value, Mapping | list | tuple):
        return False
    parts = value.values() if isinstance(value, Mapping) else value
    return num_levels == 0 or any(_is_deeper_than(part, num_levels - 1) for part in parts)


def _check_depth(name: str, request: Request) -> None:
    """Raises ValueError where no parser of protobuf takes the request: at most 100 levels."""
    try:
        type(request).FromString(request.SerializeToString())
    except DecodeError:
        raise ValueError(TOO_DEEP.format(name)) from None


def _set(message: Any, field: str, value: Any) -> None:
    """Fills a scalar, repeated or map field."""
    present = getattr(message, field)
    if isinstance(value, Mapping):
        present.update(value)
    elif hasattr(present, "extend"):
        if isinstance(value, str):
            raise TypeError(f"{field} takes a list of strings, not one string")
        present.extend(value)
    else:
        setattr(message, field, value)
