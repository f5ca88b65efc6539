"""Each kind of structure means its language, and what cannot be honoured is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specd.engine.params import StructureParams
from specd.errors import InvalidField
from specd.structure.compiling import compiled
from specd.structure.grammar import grammar_of
from tests.unit.structure.support import (
    PERSON,
    byte_level,
    first_mask,
    fits,
    ids_of,
    schema,
    structure,
)

ADA: dict[str, Any] = {"name": "Ada", "age": 36, "tags": ["blue 🙂"]}


def refusal(params: StructureParams) -> InvalidField:
    with pytest.raises(InvalidField) as refused:
        compiled(params, byte_level())
    return refused.value


def dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def test_json_is_that_of_the_schema() -> None:
    assert fits(schema(PERSON), dumped(ADA))
    for wrong in (
        {**ADA, "age": 151},
        {**ADA, "age": "36"},
        {**ADA, "more": 1},
        {"name": "Ada", "age": 36},
        {**ADA, "tags": ["green"]},
        {**ADA, "name": "Ada Lovelace"},
    ):
        assert not fits(schema(PERSON), dumped(wrong))


def test_json_is_spaced_as_most_is_written() -> None:
    assert fits(schema(PERSON), dumped(ADA))
    assert not fits(schema(PERSON), json.dumps(ADA, ensure_ascii=False, separators=(",", ":")))
    assert not fits(schema(PERSON), json.dumps(ADA, ensure_ascii=False, indent=1))


@pytest.mark.parametrize(
    ("options", "indent", "separators"),
    [
        ({"whitespace_flexible": True}, 2, None),
        ({"whitespace_flexible": False}, None, (",", ":")),
        ({"item_separator": " ; ", "key_separator": "=", "whitespace_flexible": False}, None,
         (" ; ", "=")),
    ],
)  # fmt: skip
def test_a_schema_may_choose_its_spacing(
    options: dict[str, Any], indent: int | None, separators: tuple[str, str] | None
) -> None:
    text = json.dumps(ADA, ensure_ascii=False, indent=indent, separators=separators)
    assert fits(schema({**PERSON, "x-guidance": options}), text)
    assert not fits(schema(PERSON), text)


def test_other_options_of_a_schema_leave_the_spacing_as_it_is() -> None:
    lenient = {**PERSON, "uniqueItems": True, "x-guidance": {"lenient": True}}
    assert fits(schema(lenient), dumped(ADA))
    assert "uniqueItems" in refusal(schema({**PERSON, "uniqueItems": True})).problem


def test_true_is_any_json_and_an_empty_schema_too() -> None:
    for any_json in (True, {}):
        assert fits(schema(any_json), dumped([1, {"a": None}]))


def test_a_regex_matches_the_whole_answer() -> None:
    number = structure("regex", r"\d{2}/\d{2}|none\n")
    assert fits(number, "12/34") and fits(number, "none\n")
    for wrong in ("12/3", "12/345", " 12/34", "none"):
        assert not fits(number, wrong)


CHOICES = (
    *("plain", 'quo"ted', "back\\slash", "line\nbreak\ttab", "/re+gex/", "a|b", "日本🙂🇨🇿"),
    *("\x01\x7f\u2028", " spaced ", "pl", "plainer", "%import x", "// no comment", "\\u0041"),
)


@pytest.mark.parametrize("choice", CHOICES)
def test_an_answer_is_one_of_the_choices_whatever_they_hold(choice: str) -> None:
    choices = structure("choice", *CHOICES)
    assert fits(choices, choice)
    assert fits(structure("choice", choice), choice)
    assert not fits(choices, choice + "!")
    assert not fits(choices, choice[:-1]) or choice[:-1] in CHOICES


def test_a_grammar_of_rules_is_followed() -> None:
    nested = structure("lark", 'start: "(" start ")" | "x"')
    assert fits(nested, "((x))")
    assert not fits(nested, "((x)")


def test_a_grammar_is_lark_even_where_it_looks_like_the_library_s_own_json() -> None:
    own = json.dumps({"grammars": [{"lark_grammar": 'start: "x"'}], "max_tokens": 1})
    assert refusal(structure("lark", own)).field == "structure.grammar"


@pytest.mark.parametrize(
    "text",
    [
        '{}}], "max_tokens": 1, "x": [{"y": {}',
        '{"type": "object"} {"type": "string"}',
        "",
        "{",
        "nonsense",
        '{"maximum": NaN}',
        "[" * 100_000,
        '{"a":' * 5000,
    ],
)
def test_a_schema_that_is_no_json_is_refused_before_the_library_sees_it(text: str) -> None:
    with pytest.raises(InvalidField) as refused:
        grammar_of(structure("json_schema", text))
    assert refused.value.field == "structure.json_schema"
    assert len(refused.value.problem) < 200


@pytest.mark.parametrize(
    ("option", "grammar"),
    [
        ("temperature", 'start: word\nword[temperature=0.5]: /[a-z]+/'),
        ("temperature", 'start: word\nword[lazy, temperature = 0.5]: /[a-z]+;/'),
        ("stop", 'start: word "."\nword[stop="."]: /[a-z.]+/'),
        ("stop", 'start: word "."\nword[suffix="]", stop=""]: /[a-z.]+/'),
        ("capture", "start: word\nword[capture]: /[a-z]+/"),
        ("stop_capture", 'start: word\nword[suffix=".", stop_capture="x"]: /[a-z]+/'),
    ],
)  # fmt: skip
def test_an_option_of_a_rule_without_effect_here_is_refused(option: str, grammar: str) -> None:
    error = refusal(structure("lark", grammar))
    assert error.field == "structure.grammar"
    assert f"the rule option {option} is not supported" in error.problem


def test_what_only_looks_like_such_an_option_is_taken() -> None:
    grammar = """
    // word[temperature=1]: /a/
    # word[stop="x"]: /b/
    start: "word[temperature=0.5]:" | /x[stop=y]:/ | capture? [stop]
    stop: "s"
    capture[lazy]: /[a-z]+;/
    """
    params = structure("lark", grammar)
    assert fits(params, "word[temperature=0.5]:")
    assert fits(params, "ab;s")


def test_rules_may_count_tokens() -> None:
    counted = structure("lark", 'start: word "."\nword[max_tokens=2]: /[a-z]+/')
    (full_stop,) = ids_of(".")
    matcher = compiled(counted, byte_level())
    assert matcher.consume_tokens(ids_of("x") + ids_of("q"))
    assert matcher.validate_tokens(ids_of("z")) == 0
    assert matcher.validate_tokens([full_stop]) == 1


def test_a_grammar_may_name_special_tokens() -> None:
    special = structure("lark", 'start: <|im_start|> "x" <[300]>')
    assert first_mask(special) == {510}
