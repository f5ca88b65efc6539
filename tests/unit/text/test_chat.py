"""Chat templates: rendered as the field expects, refused with a reason, never endless."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.toy_gguf import CHAT_TEMPLATE, tokenizer_metadata, toy_vocabulary
from specd.errors import InvalidField
from specd.model.gguf_file import GGUFFile
from specd.text.chat import ChatTemplate
from specd.text.prompt import ChatMessage
from specd.text.tokenizer import Tokenizer
from tests.support.toy_vocabularies import byte_level_folder
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


@dataclass(frozen=True)
class OpenedModel:
    """What `from_source` needs of a model on disk."""

    path: Path
    metadata: dict[str, Any]


def folder_template(path: Path, files: dict[str, object]) -> ChatTemplate:
    source = OpenedModel(byte_level_folder(path, files=files), {})
    return ChatTemplate.from_source(source, Tokenizer.from_source(source))


def from_folder(path: Path, files: dict[str, object]) -> str:
    return folder_template(path, files).render(HELLO)


WORDS = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
NAMED = [{"name": "rag", "template": "no"}, {"name": "default", "template": WORDS}]
NAMES = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
EXPECTED = "<|im_start|>Hello <b>&é<|im_end|>"


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": NAMES | {"chat_template": WORDS}},
        {"tokenizer_config.json": NAMES | {"chat_template": NAMED}},
        {"tokenizer_config.json": NAMES, "chat_template.jinja": WORDS},
        {"tokenizer_config.json": NAMES | {"chat_template": "no"}, "chat_template.jinja": WORDS},
        {"tokenizer_config.json": NAMES, "chat_template.json": {"chat_template": WORDS}},
    ],
)
def test_a_folders_template_is_found_wherever_it_is(
    tmp_path: Path, files: dict[str, object]
) -> None:
    assert from_folder(tmp_path, files) == EXPECTED


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (NAMED[:1], "none of the model's chat templates is called 'default': rag; send text"),
        (5, "the model's chat template is no text"),
        (None, "has no chat template"),
        ("{% for %}", "is not usable"),
    ],
)
def test_a_folder_without_a_usable_template_says_why(
    tmp_path: Path, template: object, problem: str
) -> None:
    used = folder_template(tmp_path, {"tokenizer_config.json": {"chat_template": template}})
    assert not used.usable
    with pytest.raises(InvalidField, match=problem):
        used.render(HELLO)


def test_a_gguf_template_that_is_no_text_says_so() -> None:
    template = ChatTemplate.from_gguf({"tokenizer.chat_template": 5}, toy_tokenizer())
    with pytest.raises(InvalidField, match="the model file's chat template is no text"):
        template.render(HELLO)


@pytest.mark.parametrize("add_bos", [True, False])
def test_i11_the_bos_that_a_template_writes_is_kept_and_is_the_only_one(add_bos: bool) -> None:
    metadata = tokenizer_metadata(toy_vocabulary(), "{{ bos_token }}{{ messages[0].content }}")
    source = OpenedModel(Path("toy.gguf"), metadata | {"tokenizer.ggml.add_bos_token": add_bos})
    tokenizer = Tokenizer.from_source(source)
    text = ChatTemplate.from_source(source, tokenizer).render(HELLO)
    ids = tokenizer.encode(text, parse_special=True, add_special=False)
    assert ids[0] == tokenizer.bos_id
    assert ids.count(ids[0]) == 1


def test_what_newer_templates_use_is_there() -> None:
    source = """
    {%- set ns = namespace(last=-1, seen=[]) -%}
    {%- for message in messages[::-1] -%}
        {%- set index = (messages | length - 1) - loop.index0 -%}
        {%- if ns.last < 0 and message.role == 'user' and message.content is string -%}
            {%- set ns.last = index -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if tools is not none or enable_thinking is defined -%} no {%- endif -%}
    {{- ns.last }}|{{ messages[0]['content'].split('</think>')[-1].lstrip('\\n') | trim -}}
    {%- if not add_generation_prompt %} no {% endif -%}
    |{{- messages[0].role.startswith('u') and messages[0] is mapping }}
    """
    assert render(source).strip() == "0|Hello <b>&é|True"


@pytest.mark.model
def test_the_default_models_template_adds_its_system_prompt(default_model_path: Path) -> None:
    metadata = GGUFFile.open(default_model_path).metadata
    template = ChatTemplate.from_gguf(metadata, Tokenizer.from_gguf(metadata))
    assert template.render((ChatMessage("user", "Hi"),)) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
