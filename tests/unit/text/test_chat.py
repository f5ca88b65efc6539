"""Chat templates: rendered as the field expects, refused with a reason, never endless."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.errors import InvalidField
from specd.model.gguf_file import GGUFFile
from specd.text.chat import ChatTemplate
from specd.text.prompt import ChatMessage
from specd.text.tokenizer import Tokenizer
from tests.support.toy_gguf import CHAT_TEMPLATE, tokenizer_metadata, toy_vocabulary
from tests.unit.text.support import toy_tokenizer

BRANCHING_MACRO = (
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}"
)
HELLO = (ChatMessage("user", "Hello <b>&é"),)


def render(source: str | None, messages: tuple[ChatMessage, ...] = HELLO) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages)


def refusal(source: str | None) -> str:
    with pytest.raises(InvalidField) as caught:
        render(source)
    assert caught.value.field == "input.chat"
    return caught.value.problem


def test_the_files_template_writes_the_conversation() -> None:
    metadata = tokenizer_metadata(toy_vocabulary())
    text = ChatTemplate.from_gguf(metadata, toy_tokenizer()).render(HELLO)
    assert text == "<|im_start|>user\nHello <b>&é<|im_end|>\n<|im_start|>assistant\n"


def test_bos_and_eos_texts_come_from_the_tokenizer() -> None:
    metadata = tokenizer_metadata(toy_vocabulary(), "{{ bos_token }}|{{ eos_token }}")
    text = ChatTemplate.from_gguf(metadata, toy_tokenizer()).render(HELLO)
    assert text == "<|im_start|>|<|im_end|>"


def test_blocks_leave_no_blank_lines() -> None:
    source = "{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}\n"
    assert render(source) == "user\n"


def test_json_keeps_characters_readable_and_unescaped() -> None:
    assert render("{{ messages | tojson }}") == '[{"role": "user", "content": "Hello <b>&é"}]'


def test_the_helpers_that_templates_expect_exist() -> None:
    assert render("{{ strftime_now('%Y') }}").isdecimal()
    assert render("{% for m in messages %}{% continue %}{% endfor %}x") == "x"
    assert render("{% generation %}a{% endgeneration %}b") == "ab"
    assert render("{{ tools is none and documents is none and add_generation_prompt }}") == "True"


def test_a_file_without_template_says_so() -> None:
    assert "has no chat template" in refusal(None)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% for %}", "is not usable: Expected an expression"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content }}", "no element 7"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' + 1 }}", "can only concatenate"),
        ("x" * (1 << 18), "more than 131072 characters"),
        ("{% break %}", "is not usable: 'break' outside loop"),
        ("{{ f(a=1, a=2) }}", "is not usable: keyword argument repeated"),
        ("{% macro m(a, a) %}{% endmacro %}", "is not usable: duplicate argument"),
        ("{% for a in messages %}" * 25 + "{% endfor %}" * 25, "too many statically nested"),
    ],
)
def test_a_failing_template_is_a_refusal_with_its_message(source: str, problem: str) -> None:
    assert problem in refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_cannot_reach_outside(source: str) -> None:
    assert refusal(source)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "rounds"),
        (BRANCHING_MACRO, "rounds"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 'a' * 10 ** 9 }}", "larger than"),
        ("{{ 10 ** 10 ** 10 }}", "larger than"),
        ("{% set x = 'a' * 1000000 %}{% for i in range(100) %}{{ x }}{% endfor %}", "characters"),
    ],
)
def test_an_endless_template_is_stopped(source: str, problem: str) -> None:
    assert problem in refusal(source)


def test_ordinary_arithmetic_is_untouched() -> None:
    assert render("{{ 3 * 4 }} {{ '-' * 5 }} {{ 2 ** 10 }}") == "12 ----- 1024"


def test_one_rendering_does_not_spend_the_rounds_of_the_next() -> None:
    template = ChatTemplate("{% for a in range(60000) %}{% endfor %}ok")
    assert [template.render(HELLO) for _ in range(5)] == ["ok"] * 5


def test_special_text_of_a_template_becomes_special_ids() -> None:
    text = ChatTemplate(CHAT_TEMPLATE).render(HELLO)
    ids = toy_tokenizer().encode(text, parse_special=True, add_special=False)
    assert sum(map(toy_tokenizer().is_special, ids)) == 3


@pytest.mark.model
def test_the_default_models_template_adds_its_system_prompt(default_model_path: Path) -> None:
    metadata = GGUFFile.open(default_model_path).metadata
    template = ChatTemplate.from_gguf(metadata, Tokenizer.from_gguf(metadata))
    assert template.render((ChatMessage("user", "Hi"),)) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
