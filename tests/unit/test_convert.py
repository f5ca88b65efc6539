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

LIMITS = convert.Limits(
    vocab_size=100,
    context_length=16,
    drafters=("ngram", "suffix"),
    default_drafters=("ngram",),
    max_draft_tokens=8,
    models=("tiny", "other"),
    draw_seed=lambda: 7,
)
Request = pb.StreamGenerateRequest
CONVERSATION = [
    types_pb2.ChatMessage(role="user", content="Hi"),
    types_pb2.ChatMessage(role="assistant"),
]


def text_request() -> Request:
    return Request(request_id="r", input=types_pb2.Input(text="Once"))


def params(request: Request) -> GenerationParams:
    return convert.params_from(request, limits=LIMITS)


def call(request: Request) -> convert.GenerationCall:
    return convert.call_from(request, limits=LIMITS)


def test_an_empty_request_gets_the_documented_defaults() -> None:
    assert params(text_request()) == GenerationParams(
        SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7),
        StopParams(),
        OutputParams(text=True, token_ids=False, skip_special_tokens=True),
        SpeculationParams(drafters=("ngram",), max_draft_tokens=8, draft_budget_s=None),
    )


def test_every_supported_field_arrives() -> None:
    request = text_request()
    request.sampling.CopyFrom(
        types_pb2.SamplingParams(temperature=0.5, top_k=5, top_p=0.25, min_p=0.125, seed=2**64 - 1)
    )
    request.stop.CopyFrom(
        types_pb2.StopParams(
            max_new_tokens=3,
            stop_strings=["a", "b"],
            stop_token_ids=[4, 9],
            ignore_eos=True,
            include_stop_string=True,
        )
    )
    request.output.CopyFrom(
        types_pb2.OutputParams(
            text=False, token_ids=True, skip_special_tokens=False, speculation_steps=True
        )
    )
    request.speculation.CopyFrom(
        types_pb2.SpeculationParams(drafters=["suffix", "ngram"], max_draft_tokens=2)
    )
    request.speculation.draft_budget.FromMilliseconds(20)
    assert params(request) == GenerationParams(
        SamplingParams(temperature=0.5, top_k=5, top_p=0.25, min_p=0.125, seed=2**64 - 1),
        StopParams(3, ("a", "b"), frozenset({4, 9}), ignore_eos=True, include_stop_string=True),
        OutputParams(False, True, skip_special_tokens=False, speculation_steps=True),
        SpeculationParams(("suffix", "ngram"), 2, 0.02),
    )


def test_generate_and_stream_generate_are_read_alike() -> None:
    request = text_request()
    request.sampling.top_k = 3
    unary = pb.GenerateRequest.FromString(request.SerializeToString())
    assert convert.call_from(unary, limits=LIMITS) == call(request)


def test_a_seed_of_zero_is_a_seed() -> None:
    request = text_request()
    request.sampling.seed = 0
    assert params(request).sampling.seed == 0


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e30])
def test_every_finite_temperature_from_zero_up_is_taken(temperature: float) -> None:
    request = text_request()
    request.sampling.temperature = temperature
    assert params(request).sampling.temperature == pytest.approx(temperature)


@pytest.mark.parametrize("top_k", [100, 2**31 - 1])
def test_a_top_k_that_keeps_the_whole_vocabulary_is_off(top_k: int) -> None:
    request = text_request()
    request.sampling.top_k = top_k
    assert params(request).sampling.top_k == 0


def test_disabled_speculation_is_plain_decoding() -> None:
    request = text_request()
    request.speculation.mode = types_pb2.SPECULATION_MODE_DISABLED
    assert params(request).speculation == SpeculationParams()


def test_no_draft_tokens_is_plain_decoding_whatever_drafters_are_named() -> None:
    request = text_request()
    request.speculation.max_draft_tokens = 0
    request.speculation.drafters.append("suffix")
    assert params(request).speculation == SpeculationParams()


def test_features_that_are_switched_off_explicitly_are_taken() -> None:
    request = text_request()
    request.sampling.repetition_penalty = 1.0
    request.sampling.presence_penalty = 0.0
    request.sampling.frequency_penalty = 0.0
    request.sampling.num_sequences = 1
    request.stop.min_new_tokens = 0
    request.priority = 0
    assert call(request) == call(text_request())


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
    ("sampling.temperature", lambda r: setattr(r.sampling, "temperature", -0.1)),
    ("sampling.temperature", lambda r: setattr(r.sampling, "temperature", float("nan"))),
    ("sampling.temperature", lambda r: setattr(r.sampling, "temperature", float("inf"))),
    ("sampling.top_p", lambda r: setattr(r.sampling, "top_p", 0.0)),
    ("sampling.top_p", lambda r: setattr(r.sampling, "top_p", 1.5)),
    ("sampling.top_p", lambda r: setattr(r.sampling, "top_p", float("nan"))),
    ("sampling.top_k", lambda r: setattr(r.sampling, "top_k", 2**31)),
    ("sampling.min_p", lambda r: setattr(r.sampling, "min_p", -0.1)),
    ("sampling.min_p", lambda r: setattr(r.sampling, "min_p", 1.1)),
    ("sampling.num_sequences", lambda r: setattr(r.sampling, "num_sequences", 0)),
    ("stop.max_new_tokens", lambda r: setattr(r.stop, "max_new_tokens", 0)),
    ("stop.stop_strings[1]", lambda r: r.stop.stop_strings.extend(["a", ""])),
    ("stop.stop_strings[0]", lambda r: r.stop.stop_strings.append("x" * 1025)),
    ("stop.stop_strings", lambda r: r.stop.stop_strings.extend("x" * 17)),
    ("stop.stop_token_ids[0]", lambda r: r.stop.stop_token_ids.append(100)),
    ("stop.stop_token_ids", lambda r: r.stop.stop_token_ids.extend([1] * 257)),
    ("output.logprob_basis", lambda r: setattr(r.output, "logprob_basis", 9)),
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
    ("structure", lambda r: setattr(r.structure, "regex", "a*")),
    ("priority", lambda r: setattr(r, "priority", -1)),
    ("tenant", lambda r: setattr(r, "tenant", "t")),
    ("input.chat.tools", lambda r: r.input.chat.tools.add()),
    ("input.chat.template_arguments", lambda r: r.input.chat.template_arguments.update({"a": 1})),
    ("sampling.repetition_penalty", lambda r: setattr(r.sampling, "repetition_penalty", 1.1)),
    ("sampling.presence_penalty", lambda r: setattr(r.sampling, "presence_penalty", 0.1)),
    ("sampling.frequency_penalty", lambda r: setattr(r.sampling, "frequency_penalty", -0.1)),
    ("sampling.logit_bias", lambda r: r.sampling.logit_bias.update({1: 0.0})),
    ("sampling.num_sequences", lambda r: setattr(r.sampling, "num_sequences", 2)),
    ("stop.min_new_tokens", lambda r: setattr(r.stop, "min_new_tokens", 1)),
    ("output.top_logprobs", lambda r: setattr(r.output, "top_logprobs", 0)),
    ("output.prompt_logprobs", lambda r: setattr(r.output, "prompt_logprobs", 0)),
    ("output.logprob_basis", lambda r: setattr(r.output, "logprob_basis", 1)),
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
