"""What a caller may send, what it becomes, and that nothing of it is ignored."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import types_pb2

from specd import errors
from specd.engine.params import (
    GenerationParams,
    OutputParams,
    SamplingParams,
    SpeculationParams,
    StopParams,
)
from specd.server import convert
from specd.text.prompt import ChatMessage, ChatPrompt, TextPrompt, TokensPrompt
from tests.support.converting import LIMITS, Request, call, params, text_request

CONVERSATION = [
    types_pb2.ChatMessage(role="user", content="Hi"),
    types_pb2.ChatMessage(role="assistant"),
]


def test_an_empty_request_gets_the_documented_defaults() -> None:
    assert params(text_request()) == GenerationParams(
        SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7),
        StopParams(),
        OutputParams(text=True, token_ids=False, skip_special_tokens=True),
        SpeculationParams(drafters=("ngram",), max_draft_tokens=8, draft_budget_s=None),
    )


def test_generate_and_stream_generate_are_read_alike() -> None:
    request = text_request(sampling={"top_k": 3})
    unary = pb.GenerateRequest.FromString(request.SerializeToString())
    assert not call(request).whole
    assert convert.call_from(unary, limits=LIMITS) == replace(call(request), whole=True)


def test_every_field_of_speculation_arrives() -> None:
    request = text_request(speculation={"drafters": ["suffix", "ngram"], "max_draft_tokens": 2})
    request.speculation.draft_budget.FromMilliseconds(20)
    assert params(request).speculation == SpeculationParams(("suffix", "ngram"), 2, 0.02)


def test_disabled_speculation_is_plain_decoding() -> None:
    request = text_request()
    request.speculation.mode = types_pb2.SPECULATION_MODE_DISABLED
    assert params(request).speculation == SpeculationParams()


def test_no_draft_tokens_is_plain_decoding_whatever_drafters_are_named() -> None:
    request = text_request()
    request.speculation.max_draft_tokens = 0
    request.speculation.drafters.append("suffix")
    assert params(request).speculation == SpeculationParams()


@pytest.mark.parametrize(
    ("message", "prompt"),
    [
        (types_pb2.Input(text="Hi"), TextPrompt("Hi", add_special_tokens=True)),
        (types_pb2.Input(text="Hi", add_special_tokens=False), TextPrompt("Hi", False)),
        (types_pb2.Input(tokens=types_pb2.TokenIds(ids=[0, 99])), TokensPrompt((0, 99))),
        (
            types_pb2.Input(
                chat=types_pb2.ChatInput(messages=CONVERSATION),
                add_special_tokens=False,
            ),
            ChatPrompt((ChatMessage("user", "Hi"), ChatMessage("assistant", ""))),
        ),
    ],
)
def test_each_form_of_prompt_is_read(message: types_pb2.Input, prompt: object) -> None:
    assert convert.prompt_from(Request(input=message), limits=LIMITS) == prompt


def test_an_empty_request_id_becomes_a_new_one_each_time() -> None:
    first, second = (convert.request_id_from(Request()) for _ in range(2))
    assert re.fullmatch(r"[0-9a-f]{32}", first)
    assert first != second


def test_the_first_model_is_the_default() -> None:
    assert call(text_request()).model == "tiny"


INVALID: list[tuple[str, Callable[[Request], object]]] = [
    ("request_id", lambda r: setattr(r, "request_id", "x" * 257)),
    ("request_id", lambda r: setattr(r, "request_id", "a\nb")),
    ("input", lambda r: r.ClearField("input")),
    ("input.text", lambda r: setattr(r.input, "text", "")),
    ("input.tokens.ids", lambda r: r.input.tokens.SetInParent()),
    ("input.tokens.ids[1]", lambda r: r.input.tokens.ids.extend([99, 100])),
    ("input", lambda r: r.input.tokens.ids.extend([1] * 16)),
    ("input.chat.messages", lambda r: r.input.chat.SetInParent()),
    ("input.chat.messages[0].role", lambda r: r.input.chat.messages.add(role="bot")),
    ("speculation.mode", lambda r: setattr(r.speculation, "mode", 9)),
    ("speculation.max_draft_tokens", lambda r: setattr(r.speculation, "max_draft_tokens", 9)),
    ("speculation.drafters[1]", lambda r: r.speculation.drafters.extend(["ngram", "ngram"])),
    ("speculation.draft_budget", lambda r: r.speculation.draft_budget.SetInParent()),
    ("speculation.draft_budget", lambda r: r.speculation.draft_budget.FromMilliseconds(1001)),
    ("speculation.draft_budget", lambda r: r.speculation.draft_budget.FromMilliseconds(-1)),
    ("speculation.draft_budget", lambda r: setattr(r.speculation.draft_budget, "nanos", 10**9)),
]


@pytest.mark.parametrize(("field", "spoil"), INVALID)
def test_a_bad_value_is_refused_by_the_path_of_its_field(
    field: str, spoil: Callable[[Request], object]
) -> None:
    request = text_request()
    spoil(request)
    with pytest.raises(errors.InvalidField) as refused:
        call(request)
    assert refused.value.field == field


@pytest.mark.parametrize("prompt", ["tokens", "chat"])
def test_special_tokens_are_added_to_text_alone(prompt: str) -> None:
    request = Request(input=types_pb2.Input(add_special_tokens=True))
    getattr(request.input, prompt).SetInParent()
    with pytest.raises(errors.InvalidField) as refused:
        call(request)
    assert refused.value.field == "input.add_special_tokens"


def test_a_prompt_of_the_length_of_the_context_is_refused_with_both_lengths() -> None:
    request = text_request()
    request.input.tokens.ids.extend([1] * 16)
    with pytest.raises(errors.ContextLengthExceeded) as refused:
        call(request)
    assert (refused.value.num_prompt_tokens, refused.value.limit) == (16, 16)


@pytest.mark.parametrize(
    "contradict",
    [
        lambda message: message.drafters.append("ngram"),
        lambda message: setattr(message, "max_draft_tokens", 4),
        lambda message: message.draft_budget.FromMilliseconds(5),
    ],
)
def test_disabled_speculation_contradicts_the_other_fields(
    contradict: Callable[[types_pb2.SpeculationParams], object],
) -> None:
    request = text_request()
    request.speculation.mode = types_pb2.SPECULATION_MODE_DISABLED
    contradict(request.speculation)
    with pytest.raises(errors.InvalidField, match="contradicts"):
        call(request)


def test_unknown_names_are_refused_by_kind() -> None:
    for kind, request in (("model", Request(model="huge")), ("drafter", text_request())):
        if kind == "drafter":
            request.speculation.drafters.append("oracle")
        with pytest.raises(errors.UnknownName) as refused:
            params(request)
        assert refused.value.kind == kind


UNSUPPORTED: list[tuple[str, Callable[[Request], object]]] = [
    ("priority", lambda r: setattr(r, "priority", -1)),
    ("tenant", lambda r: setattr(r, "tenant", "t")),
    ("input.chat.tools", lambda r: r.input.chat.tools.add()),
    ("input.chat.template_arguments", lambda r: r.input.chat.template_arguments.update({"a": 1})),
    ("speculation.prediction", lambda r: setattr(r.speculation.prediction, "text", "x")),
]


@pytest.mark.parametrize(("field", "ask"), UNSUPPORTED)
def test_a_field_without_its_feature_is_refused(
    field: str, ask: Callable[[Request], object]
) -> None:
    request = text_request()
    ask(request)
    with pytest.raises(errors.UnsupportedField) as refused:
        call(request)
    assert refused.value.field == field


def test_an_abort_without_an_id_is_refused() -> None:
    assert convert.aborted_id_from(pb.AbortGenerationRequest(request_id="r")) == "r"
    with pytest.raises(errors.InvalidField, match="request_id"):
        convert.aborted_id_from(pb.AbortGenerationRequest())


def test_limits_without_drafters_decode_plainly() -> None:
    limits = replace(LIMITS, drafters=(), default_drafters=(), max_draft_tokens=0)
    assert convert.params_from(text_request(), limits=limits).speculation == SpeculationParams()
