"""Whatever a text is, there is a matcher or a sentence that says why not."""

from __future__ import annotations

import json
import random
import socket
import time

import numpy as np
import pytest

from specd.engine.params import StructureParams
from specd.errors import InvalidField
from specd.structure.compiling import MAX_MESSAGE_CHARS, compiled, error_of, fill
from tests.unit.structure.support import Kind, byte_level, schema, structure

# The worst that was found took 0.3 s on a quiet machine.
LIMIT_S = 3.0
WORDS = ["".join(random.Random(n).choices("abcdefghij", k=9)) for n in range(8000)]


def refused(params: StructureParams) -> InvalidField:
    with pytest.raises(InvalidField) as found:
        compiled(params, byte_level())
    return found.value


REFUSED: dict[str, tuple[StructureParams, str, str]] = {
    "open group": (structure("regex", "(a"), "structure.regex", "unclosed group"),
    "look-around": (structure("regex", "(?=a)b"), "structure.regex", "look-around"),
    "back reference": (structure("regex", r"(a)\1"), "structure.regex", "backreferences"),
    "nothing matches": (structure("regex", "[a&&b]"), "structure.regex", "no answer can have"),
    "no rule": (structure("lark", 'rule: "a"'), "structure.grammar", "no start rule"),
    "cut off": (structure("lark", 'start: ("a"'), "structure.grammar", "Expected"),
    "recursive terminal": (
        structure("lark", 'start: A\nA: "a" A | "b"'), "structure.grammar", "circular reference"
    ),
    "endless": (structure("lark", "start: start"), "structure.grammar", "no answer can have"),
    "deep rules": (
        structure("lark", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
        "structure.grammar",
        "too deeply nested",
    ),
    "deep regex": (structure("regex", "(" * 20_000 + ")" * 20_000), "structure.regex", "nest"),
    "unknown keyword": (
        schema({"uniqueItems": True, "type": "array"}), "structure.json_schema", "uniqueItems"
    ),
    "unknown format": (
        schema({"type": "string", "format": "colour"}), "structure.json_schema", "colour"
    ),
    "unknown option": (
        schema({"x-guidance": {"spaces": 4}}), "structure.json_schema", "unknown field `spaces`"
    ),
    "contradiction": (
        schema({"type": "integer", "minimum": 5, "maximum": 4}),
        "structure.json_schema",
        "nsatisfiable",
    ),
    "false": (schema(False), "structure.json_schema", "nsatisfiable"),
    "itself": (schema({"$ref": "#"}), "structure.json_schema", "no answer can have"),
    "a circle": (
        schema({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                "$ref": "#/$defs/a"}),
        "structure.json_schema",
        "no answer can have",
    ),
    "nowhere": (schema({"$ref": "#/$defs/x"}), "structure.json_schema", "x"),
    "deep JSON": (
        structure("json_schema", '{"items":' * 500 + "{}" + "}" * 500),
        "structure.json_schema",
        "recursion limit",
    ),
    "two to the thirtieth": (
        schema({"allOf": [
            {"anyOf": [{"properties": {w: {"type": kind}}} for kind in ("string", "integer")]}
            for w in WORDS[:30]
        ]}),
        "structure.json_schema",
        "schema too large",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_structure_is_refused_with_its_field_and_the_reason(name: str) -> None:
    params, field, reason = REFUSED[name]
    error = refused(params)
    assert error.field == field
    assert reason in error.problem, error.problem
    assert len(error.problem) <= MAX_MESSAGE_CHARS + 50
    assert "\n" not in error.problem
    assert "<" not in error.problem.replace("<|", ""), "what the library adds for itself"


def test_a_choice_that_the_vocabulary_cannot_express_is_refused_by_its_place() -> None:
    error = refused(structure("choice", "fine", "half a surrogate \ud800"))
    assert error.field == "structure.choice.values[1]"


def test_a_reference_to_elsewhere_is_refused_and_not_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        for place in (f"http://127.0.0.1:{port}/x.json", "file:///etc/hostname", "x.json"):
            error = refused(schema({"$ref": place}))
            assert "not present in a registry" in error.problem
        with pytest.raises(BlockingIOError):
            server.accept()


def ambiguous(more: str = "") -> StructureParams:
    return structure("lark", f'start: s\ns: s s | "a" {more}')


HEAVY: dict[str, StructureParams] = {
    "a million times": structure("regex", "a{1,1000000}"),
    "a thousand times a thousand": structure("regex", "((a{1,1000}){1,1000}){1,1000}"),
    "all beginnings": structure("regex", "(.*a.{300}){3}"),
    "every letter": structure("regex", r"(\p{L}|\p{N}|\p{S}){1,5000}"),
    "many words": structure("regex", "(" + "|".join(WORDS) + ")*"),
    "large enum": schema({"enum": WORDS}),
    "many properties": schema({"properties": {w: {"type": "string"} for w in WORDS[:500]}}),
    "long array": schema({"type": "array", "items": {}, "minItems": 10**5, "maxItems": 10**6}),
    "long string": schema({"type": "string", "minLength": 1000, "maxLength": 10**6}),
    "multiples": schema({"type": "integer", "multipleOf": 9991, "minimum": 0}),
    "bomb of references": schema({
        "$defs": {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(25)}
        | {"a25": {"type": "object"}},
        "$ref": "#/$defs/a0",
    }),
    "ambiguous": ambiguous(),
    "more ambiguous": ambiguous("| s s s | s s s s s |"),
    "to the right": structure("lark", 'start: "a" start | "a"'),
    "a rule a million times": structure("lark", 'start: ("a" | "b"){1,1000000}'),
    "long choice": structure("choice", "the harbour " * 20_000),
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_structure_is_followed_or_fails_and_no_call_takes_long(name: str) -> None:
    choose = random.Random(1)
    began = time.perf_counter()
    try:
        matcher = compiled(HEAVY[name], byte_level())
    except InvalidField:
        matcher = None
    took = [time.perf_counter() - began]
    mask = np.zeros(byte_level().num_words, np.uint32)
    for _ in range(60 if matcher else 0):
        assert matcher
        began = time.perf_counter()
        if fill(matcher, mask) or matcher.is_stopped():
            break
        took.append(time.perf_counter() - began)
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        began = time.perf_counter()
        matcher.consume_token(int(choose.choice(bits.tolist())))
        took.append(time.perf_counter() - began)
    assert max(took) < LIMIT_S


def test_an_ambiguous_grammar_fails_before_its_steps_take_long() -> None:
    """The work of a step grows with the square of what is open: with 2,000 items, 0.7 s."""
    matcher = compiled(ambiguous("| s s s"), byte_level())
    [letter] = byte_level().encode("a")
    num_tokens = sum(matcher.consume_token(letter) for _ in range(200))
    assert 10 < num_tokens < 100
    assert "max is 500" in str(error_of(matcher))


def garbage(choose: random.Random) -> tuple[Kind, str]:
    kind: Kind = choose.choice(("json_schema", "regex", "lark"))
    pieces = {
        "json_schema": ['{"', "type", '":', '"object"', "[", "]", "}", "{", ",", "$ref", '"#"',
                        "anyOf", "1e999", "null", "true", "-", "\\u", "é", "minItems", "pattern"],
        "regex": ["(", ")", "[", "]", "{1,9}", "*", "+", "?", "|", "\\", "^", "$", ".", "a", "é",
                  "\\p{L}", "(?i)", "&&", "{99999}", "\x00", "\n", "/"],
        "lark": ["start", ":", '"a"', "\n", "|", "(", ")", "/a+/", "~", "&", "%json", "{", "}",
                 "<[1]>", "<[*]>", "[", "]", "%ignore", "A", "::", "_", "!", "?", "//", "#", '"'],
    }[kind]  # fmt: skip
    start = "start: " if kind == "lark" and choose.random() < 0.7 else ""
    return kind, start + "".join(choose.choices(pieces, k=choose.randint(1, 25)))


def test_garbage_gives_a_matcher_or_a_refusal() -> None:
    choose = random.Random(5)
    outcomes = {True: 0, False: 0}
    for _ in range(500):
        kind, text = garbage(choose)
        try:
            compiled(structure(kind, text), byte_level())
        except InvalidField as error:
            assert error.field.startswith("structure.")
            outcomes[False] += 1
        else:
            outcomes[True] += 1
    assert min(outcomes.values()) > 10, outcomes


def test_a_long_message_keeps_its_point() -> None:
    error = refused(structure("regex", "a" * 5000 + "("))
    assert len(error.problem) <= MAX_MESSAGE_CHARS
    assert error.problem.startswith("at 1(8): invalid regex")
    assert "unclosed group" in error.problem


def test_the_message_of_a_schema_names_what_is_wrong() -> None:
    error = refused(schema({"type": "object", "properties": {"a": {"type": "colour"}}}))
    assert "colour" in error.problem, json.dumps(error.problem)
