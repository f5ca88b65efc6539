"""Structures that are none, that are traps, and that fail on the way: nobody else notices."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from specd_client import Client, Completion, InvalidRequest, Reason, WrongState

from tests.e2e.calls import PROMPT, answer, quiet
from tests.support.daemon import Daemon

# Behind "b" comes a number of which the library makes too much.
TOO_COMPLEX = """start: "a" /[a-z]{3,6}/ | "b" multiple
multiple: %json {"type": "integer", "multipleOf": 99991, "minimum": 0, "maximum": 1000000000000000}
"""
TRAP = json.dumps({"type": "integer", "multipleOf": 999_983})
CHOICES = ("yes", "no")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("structure.json_schema", {"json_schema": '{"type": '}, "is no JSON"),
    ("structure.json_schema", {"json_schema": '{"uniqueItems": true}'}, "uniqueItems"),
    ("structure.json_schema", {"json_schema": '{"$ref": "http://x/y"}'}, "not present"),
    ("structure.json_schema", {"json_schema": TRAP}, "takes"),
    ("structure.regex", {"regex": "(a"}, "unclosed group"),
    ("structure.regex", {"regex": "[a&&b]"}, "no answer can have this form"),
    ("structure.grammar", {"grammar": "start: ("}, "Expected"),
    ("structure.grammar", {"grammar": 'start: a\na[stop=""]: /a+/'}, "rule option stop"),
    ("stop.min_new_tokens", {"regex": "a", "min_new_tokens": 1}, "structure"),
    ("stop.ignore_eos", {"regex": "a", "ignore_eos": True}, "structure"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "options", "reason"), REFUSED)
@pytest.mark.asyncio
async def test_what_is_no_structure_is_refused_and_nobody_else_notices(
    daemon: Daemon, field: str, options: dict[str, Any], reason: str
) -> None:
    async with Client(daemon.address) as client:
        wish: dict[str, Any] = {"seed": 2, "max_new_tokens": 60}
        alone = await answer(client, PROMPT, **wish)
        beside = asyncio.create_task(answer(client, PROMPT, **wish))
        with pytest.raises(InvalidRequest) as refused:
            await answer(client, PROMPT, **options)
        assert refused.value.reason == Reason.INVALID_FIELD
        assert [violation.field for violation in refused.value.field_violations] == [field]
        assert reason in refused.value.message
        assert (await beside).token_ids == alone.token_ids


@pytest.mark.asyncio
async def test_a_stream_goes_on_while_a_costly_structure_is_tried(daemon: Daemon) -> None:
    """A negated terminal, whose compile would take years; it is given two seconds."""
    trap = "start: T\nT: ~/(.*a.{20}b.*)/ & /[ab]{50,100}/"
    async with Client(daemon.address) as client:
        during, trying = 0, asyncio.create_task(answer(client, PROMPT, grammar=trap))
        while not trying.done():
            stream = client.stream(PROMPT, max_new_tokens=100, ignore_eos=True, speculation=False)
            async for _ in stream:
                during += not trying.done()
        with pytest.raises(InvalidRequest, match="to compile"):
            await trying
        assert during > 100
        # What is known does not wait for it, and the next one is tried as if nothing had been.
        assert (await answer(client, PROMPT, choice=CHOICES)).text in CHOICES
        assert (await answer(client, PROMPT, regex="new[0-9]")).text.startswith("new")


@pytest.mark.asyncio
async def test_a_form_that_grows_too_complex_fails_its_own_request_with_the_reason(
    daemon: Daemon,
) -> None:
    async with Client(daemon.address) as client:
        wish: dict[str, Any] = {"temperature": 0, "grammar": TOO_COMPLEX, "max_new_tokens": 40}
        bad = {"logit_bias": {ord("b"): 100.0}}
        good = {"logit_bias": {ord("a"): 100.0}}
        for options in ({"speculation": False}, {}, {"drafters": ["grammar"]}):
            failed, fine, free = await asyncio.gather(
                answer(client, PROMPT, **wish, **bad, **options),
                answer(client, PROMPT, **wish, **good, **options),
                answer(client, PROMPT, seed=1, max_new_tokens=30),
                return_exceptions=True,
            )
            assert isinstance(failed, WrongState)
            assert failed.reason == Reason.STRUCTURE_FAILED
            assert "too many expressions" in failed.message
            assert isinstance(fine, Completion) and re.fullmatch("a[a-z]{3,6}", fine.text)
            assert isinstance(free, Completion)
        await quiet(client)
