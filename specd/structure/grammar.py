"""What a caller asks for, as a grammar that llguidance reads.

Knows how each kind of structure is written down for the library, and what of its language this
daemon cannot honour: that is refused here, and nothing is left out silently. Whether the text makes
sense is the library's to say.
Invariant: a caller's text stays inside the place that it is given for.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from llguidance import LLMatcher

from specd.engine.params import StructureParams
from specd.errors import InvalidField

# The JSON that models write most. With free whitespace little is forced, so little can be drafted,
# and a small model may go on with spaces to its last token.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_SPACING_KEYS = frozenset({*_SPACING, "whitespace_pattern"})
_OPTIONS = "x-guidance"

# Strings, comments and regular expressions of Lark; a rule's options are looked for outside.
_LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/')
_RULE_OPTIONS = re.compile(r"^[ \t]*[?!]?[\w-]+[ \t]*\[([^\]]*)\]", re.MULTILINE)
_REFUSED = {
    "temperature": "the temperature is one for the whole answer",
    "stop": "what was sampled is not taken back; use suffix or lazy",
    "capture": "an answer has no captures",
    "stop_capture": "an answer has no captures",
}


def field_of(params: StructureParams) -> str:
    """The field of the wire message that a structure came in."""
    names = {"lark": "grammar", "choice": "choice.values"}
    return f"structure.{names.get(params.kind, params.kind)}"


def grammar_of(params: StructureParams) -> str:
    """The grammar for the library. Raises InvalidField for what no grammar can be made of."""
    match params.kind:
        case "json_schema":
            return _json_schema(params)
        case "regex":
            return LLMatcher.grammar_from_regex(params.values[0])
        case "lark":
            _check_rule_options(params)
            return _lark(params.values[0])
        case "choice":
            # One terminal: as rules, a thousand choices with one beginning take 20 ms for a mask.
            return _lark("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, params.values)))


def _lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _json_schema(params: StructureParams) -> str:
    text = params.values[0].strip(" \t\r\n")
    schema = _parsed(params, text)
    if schema is True:
        text, schema = "{}", {}
    if isinstance(schema, dict):
        options = schema.get(_OPTIONS, {})
        if isinstance(options, dict) and not options.keys() & _SPACING_KEYS:
            comma = ", " if schema else ""  # of two equal keys, the last one counts
            text = f'{text[:-1]}{comma}"{_OPTIONS}": {json.dumps(options | _SPACING)}}}'
    return f'{{"grammars": [{{"json_schema": {text}}}]}}'


def _parsed(params: StructureParams, text: str) -> object:
    def refuse(problem: str) -> NoReturn:
        raise InvalidField(field_of(params), problem)

    def constant(name: str) -> NoReturn:
        refuse(f"is no JSON: {name} is no number")

    try:
        return json.loads(text, parse_constant=constant)
    except RecursionError:
        refuse("is nested too deeply")
    except ValueError as error:
        refuse(f"is no JSON: {error}")


def _check_rule_options(params: StructureParams) -> None:
    """Raise InvalidField for options of rules that would be without effect here."""
    text = _LITERALS.sub('""', params.values[0])
    for options in _RULE_OPTIONS.findall(text):
        for option in options.split(","):
            name = option.partition("=")[0].strip()
            if name in _REFUSED:
                raise InvalidField(
                    field_of(params), f"the rule option {name} is not supported: {_REFUSED[name]}"
                )
