"""Protobuf -> domain, with all validation of what a caller sends. The way back is `wire.py`.

Knows the wire messages and the limits of this daemon; knows nothing of live requests or tensors.
`convert_sampling.py`, `convert_output.py` and `convert_model.py` are parts of it.

Invariant: whatever a caller sets is in the result or refused by name. Fields that this revision of
the protocol lacks were refused before, in `decoding.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specd_client.v1 import generation_pb2, model_pb2, types_pb2

from specd.engine.params import GenerationParams, SpeculationParams, StructureParams
from specd.errors import ContextLengthExceeded, InvalidField, UnknownName
from specd.server.convert_output import check_stops_fit, output_from, structure_from
from specd.server.convert_sampling import Tokens, num_sequences_from, sampling_from, stop_from
from specd.server.fields import (
    check_enum,
    refuse_if,
    seconds_from,
    token_ids_from,
    value_or,
)
from specd.structure.drafter import NAME as GRAMMAR
from specd.text.prompt import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokensPrompt

MAX_REQUEST_ID_CHARS = 256
MIN_DRAFT_BUDGET_S = 1e-9
MAX_DRAFT_BUDGET_S = 1.0
# The template takes 0.1 ms for each and holds the interpreter lock.
MAX_MESSAGES = 4_096
ROLES = ("system", "user", "assistant", "tool")

GenerationRequest = generation_pb2.GenerateRequest | generation_pb2.StreamGenerateRequest
NamesModel = (
    GenerationRequest
    | model_pb2.TokenizeRequest
    | model_pb2.DetokenizeRequest
    | model_pb2.GetModelRequest
)
HasInput = GenerationRequest | model_pb2.TokenizeRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """What this daemon takes.

    drafters: all names a request may choose. default_drafters: the chain of a request that names
    none; `grammar` comes before it where there is a structure. max_draft_tokens: draft tokens per
    step, default and cap. models: names served, the default first. draw_seed: gives an unsigned
    64-bit seed to a request without one. end_ids: the model's own end tokens.
    """

    vocab_size: int
    context_length: int
    drafters: tuple[str, ...]
    default_drafters: tuple[str, ...]
    max_draft_tokens: int
    models: tuple[str, ...]
    draw_seed: Callable[[], int]
    end_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """A whole generation request, validated and resolved. whole: its answer is one message."""

    request_id: str
    model: str
    prompt: Prompt
    params: GenerationParams
    whole: bool = False


def call_from(request: GenerationRequest, *, limits: Limits) -> GenerationCall:
    """Returns everything that `request` says. Raises RequestRefused."""
    return GenerationCall(
        request_id=request_id_from(request),
        model=model_from(request, limits=limits),
        prompt=prompt_from(request, limits=limits),
        params=params_from(request, limits=limits),
        whole=isinstance(request, generation_pb2.GenerateRequest),
    )


def params_from(request: GenerationRequest, *, limits: Limits) -> GenerationParams:
    """Returns the parameters with defaults filled in; draws the seed. Raises RequestRefused."""
    model_from(request, limits=limits)
    refuse_if("priority", request.priority != 0)
    refuse_if("tenant", request.tenant != "")
    tokens = Tokens(limits.vocab_size, limits.context_length, limits.end_ids)
    stop = stop_from(request.stop, tokens)
    structure: StructureParams | None = None
    if request.HasField("structure"):
        structure = structure_from(request.structure)
        check_stops_fit(stop)
    return GenerationParams(
        sampling=sampling_from(
            request.sampling, vocab_size=limits.vocab_size, draw_seed=limits.draw_seed
        ),
        stop=stop,
        output=output_from(request.output),
        speculation=_speculation(request.speculation, limits, is_structured=structure is not None),
        structure=structure,
        num_sequences=num_sequences_from(request.sampling),
    )


def prompt_from(request: HasInput, *, limits: Limits) -> Prompt:
    """Returns the prompt. Raises InvalidField, ContextLengthExceeded or UnsupportedField."""
    match request.input.WhichOneof("prompt"):
        case "text":
            return _text_prompt(request.input)
        case "tokens":
            return _tokens_prompt(request.input, limits)
        case "chat":
            return _chat_prompt(request.input)
        case _:
            raise InvalidField("input", "set one of text, tokens and chat")


def request_id_from(request: GenerationRequest) -> str:
    """Returns the caller's id, or a new one where it is empty. Raises InvalidField."""
    request_id = request.request_id
    if len(request_id) > MAX_REQUEST_ID_CHARS:
        raise InvalidField("request_id", f"longer than {MAX_REQUEST_ID_CHARS} characters")
    if not request_id.isprintable():
        raise InvalidField("request_id", "holds characters that cannot be printed")
    return request_id or uuid.uuid4().hex


def aborted_id_from(request: generation_pb2.AbortGenerationRequest) -> str:
    """Returns the id to abort. Raises InvalidField where it is empty."""
    if not request.request_id:
        raise InvalidField("request_id", "name the request to abort")
    return request.request_id


def model_from(request: NamesModel, *, limits: Limits) -> str:
    """Returns the model's name, the default one where none is given. Raises UnknownName."""
    if not request.model:
        return limits.models[0]
    if request.model not in limits.models:
        raise UnknownName("model", request.model, list(limits.models))
    return request.model


def _text_prompt(message: types_pb2.Input) -> TextPrompt:
    if not message.text:
        raise InvalidField("input.text", "is empty")
    return TextPrompt(message.text, value_or(message, "add_special_tokens", True))


def _tokens_prompt(message: types_pb2.Input, limits: Limits) -> TokensPrompt:
    if message.add_special_tokens:
        raise InvalidField("input.add_special_tokens", "tokens are taken as they are")
    num_ids = len(message.tokens.ids)
    if not num_ids:
        raise InvalidField("input.tokens.ids", "is empty")
    # First, for to look at each of four million ids takes a tenth of a second.
    if num_ids >= limits.context_length:
        raise ContextLengthExceeded(num_ids, limits.context_length)
    return TokensPrompt(token_ids_from("input.tokens.ids", message.tokens.ids, limits.vocab_size))


def _chat_prompt(message: types_pb2.Input) -> ChatPrompt:
    if message.add_special_tokens:
        raise InvalidField(
            "input.add_special_tokens", "a chat template writes its own special tokens"
        )
    chat = message.chat
    refuse_if("input.chat.tools", bool(chat.tools))
    refuse_if("input.chat.template_arguments", bool(chat.template_arguments.fields))
    if not chat.messages:
        raise InvalidField("input.chat.messages", "is empty")
    if len(chat.messages) > MAX_MESSAGES:
        raise InvalidField("input.chat.messages", f"more than {MAX_MESSAGES}")
    for index, item in enumerate(chat.messages):
        if item.role not in ROLES:
            raise InvalidField(
                f"input.chat.messages[{index}].role", f"must be one of {', '.join(ROLES)}"
            )
    return ChatPrompt(tuple(ChatMessage(item.role, item.content) for item in chat.messages))


def _speculation(
    message: types_pb2.SpeculationParams, limits: Limits, *, is_structured: bool
) -> SpeculationParams:
    check_enum("speculation.mode", message.mode, types_pb2.SpeculationMode.values())
    refuse_if("speculation.prediction", message.HasField("prediction"))
    if message.mode == types_pb2.SPECULATION_MODE_DISABLED:
        return _plain(message)
    max_draft_tokens = _max_draft_tokens(message, limits)
    drafters = _drafters(message.drafters, limits)
    if is_structured and not message.drafters and GRAMMAR in limits.drafters:
        drafters = tuple(dict.fromkeys((GRAMMAR, *drafters)))
    budget_s = _draft_budget_s(message)
    return SpeculationParams(drafters if max_draft_tokens else (), max_draft_tokens, budget_s)


def _plain(message: types_pb2.SpeculationParams) -> SpeculationParams:
    others = [field.name for field, _ in message.ListFields() if field.name != "mode"]
    if others:
        raise InvalidField("speculation.mode", f"DISABLED contradicts {' and '.join(others)}")
    return SpeculationParams()


def _max_draft_tokens(message: types_pb2.SpeculationParams, limits: Limits) -> int:
    cap = limits.max_draft_tokens
    if message.max_draft_tokens > cap:
        raise InvalidField("speculation.max_draft_tokens", f"this daemon drafts at most {cap}")
    return value_or(message, "max_draft_tokens", cap)


def _drafters(names: Sequence[str], limits: Limits) -> tuple[str, ...]:
    for index, name in enumerate(names):
        if name not in limits.drafters:
            raise UnknownName("drafter", name, list(limits.drafters))
        if name in names[:index]:
            raise InvalidField(f"speculation.drafters[{index}]", f"names {name!r} again")
    return tuple(names) or limits.default_drafters


def _draft_budget_s(message: types_pb2.SpeculationParams) -> float | None:
    if not message.HasField("draft_budget"):
        return None
    return seconds_from(
        "speculation.draft_budget",
        message.draft_budget,
        low=MIN_DRAFT_BUDGET_S,
        high=MAX_DRAFT_BUDGET_S,
    )
