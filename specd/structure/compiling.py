"""From a grammar to a matcher that has told its first mask, or to the reason why there is none.

Knows the library's limits, which bound the steps of a matcher; `judge.py` is what bounds a compile.
Matchers are not kept for the next request: a typical schema compiles in 0.6 ms, and copies of a
matcher share one lexer, with its memory, its lock, its fuel and its errors.
Invariant: whatever the text is, the caller gets a matcher or an InvalidField that says why not.
"""

from __future__ import annotations

import re
from typing import TypedDict

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from specd.engine.params import StructureParams
from specd.engine.step_types import Words
from specd.errors import InvalidField
from specd.structure.bridge import TokenizerBridge
from specd.structure.grammar import field_of, grammar_of

MAX_MESSAGE_CHARS = 300
_MAX_LINE_CHARS = 120
# Lines of a message that show the caller's own text again, and where in it.
_QUOTES = re.compile(r"\d+ \||\^+$")
# A state of a lexer takes 1 to 2 KB; the library's own limit, 250,000, would be half a gigabyte.
_MAX_STATES = 10_000
# Work of one mask, which the step of every request may wait for. An ambiguous grammar used up the
# library's 50,000 items in 16 ms, and a sequence that fails pays for it twice.
_MAX_STEP_ITEMS = 10_000
# Items of a row are alternatives that are open at once. An ambiguous grammar pays for each pair:
# with the library's 2,000, `s: s s | "a"` took 0.7 s a step, with 500 it fails after 20 ms.
# A JSON object has four for each property that may come next, and is never so ambiguous.
_MAX_LARK_ITEMS = 500


class Limits(TypedDict, total=False):
    """Those of the library's limits that are not its own choice."""

    max_lexer_states: int
    max_items_in_row: int
    step_max_items: int


def limits_of(params: StructureParams) -> Limits:
    """What bounds a structure of this kind."""
    limits = Limits(max_lexer_states=_MAX_STATES, step_max_items=_MAX_STEP_ITEMS)
    if params.kind == "lark":
        limits["max_items_in_row"] = _MAX_LARK_ITEMS
    return limits


def compiled(params: StructureParams, bridge: TokenizerBridge) -> LLMatcher:
    """A fresh matcher. Raises InvalidField: no grammar, too complex, or nothing can begin it.

    The time it takes is not bounded for a grammar that was not tried out before.
    """
    _check_spelling(params, bridge)
    grammar = grammar_of(params)
    limits = LLParserLimits(verbose_errors=False, **limits_of(params))
    matcher = LLMatcher(bridge.library, grammar, log_level=0, limits=limits)
    problem = error_of(matcher)
    if problem is None and (problem := fill(matcher, np.zeros(bridge.num_words, np.uint32))):
        problem = f"no answer can have this form: {problem}"
    if problem is not None:
        raise InvalidField(field_of(params), problem)
    return matcher


def _check_spelling(params: StructureParams, bridge: TokenizerBridge) -> None:
    """Of the other kinds, the model's vocabulary is one more thing that the text is joined with."""
    for index, choice in enumerate(params.values if params.kind == "choice" else ()):
        try:
            bridge.check(choice)
        except InvalidField as error:
            raise InvalidField(f"{field_of(params)}[{index}]", error.problem) from None


def fill(matcher: LLMatcher, mask: Words) -> str | None:
    """Write what may come next into `mask` [words]; returns the problem of a matcher that fails.

    A matcher that has failed fails for ever; its mask is empty.
    """
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    problem = error_of(matcher)
    if problem is not None:
        mask.fill(0)  # the library allows the end in this case
    return problem


def error_of(matcher: LLMatcher) -> str | None:
    """What is wrong with a matcher, on one line of sane length; None if nothing is."""
    if not matcher.is_error():
        return None
    found = matcher.get_error().partition("<non-verbose/>")[0].partition("<backtrace>")[0]
    lines = [line.strip() for line in found.replace("NoExtensionBias", "no token fits").split("\n")]
    told = [_cut(line, _MAX_LINE_CHARS) for line in lines if line and not _QUOTES.match(line)]
    return _cut(" ".join(told), MAX_MESSAGE_CHARS)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 3]}..."
