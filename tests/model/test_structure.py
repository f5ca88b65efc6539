"""Structures with the real default model: JSON that parses, the same tokens with drafts or without.

In the daemon's own weights, so that what is shown is what users get.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client, FinishReason

from tests.e2e.calls import check_sums
from tests.support.daemon import Daemon, daemon_process

pytestmark = pytest.mark.model
BOOKS = {
    "type": "object",
    "properties": {
        "books": {
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "title": {"type": "string", "maxLength": 40},
                    "year": {"type": "integer", "minimum": 1500, "maximum": 2100},
                    "in_print": {"type": "boolean"},
                },
                "required": ["title", "year", "in_print"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["books"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "List two famous books as JSON."}]
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "grammar": {"drafters": ["grammar"]},
    "ngram": {"drafters": ["ngram"]},
}


@pytest.fixture(scope="module")
def daemon(default_model_path: Path) -> Iterator[Daemon]:
    with daemon_process(default_model_path, "--kv-memory", "512M") as daemon:
        yield daemon


async def ask(client: Client, **options: Any) -> Any:
    wish: dict[str, Any] = {"json_schema": BOOKS, "max_new_tokens": 200}
    wish |= {"return_token_ids": True, "return_steps": True}
    return await client.generate(messages=QUESTION, **(wish | options))


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 5}])
@pytest.mark.asyncio
async def test_json_parses_and_is_the_same_with_drafts_and_without(
    daemon: Daemon, sampling: dict[str, Any]
) -> None:
    async with Client(daemon.address) as client:
        plain = await ask(client, speculation=False, **sampling)
        assert plain.finish_reason is FinishReason.EOS_TOKEN
        books = json.loads(plain.text)["books"]
        assert 2 <= len(books) <= 3
        for book in books:
            assert list(book) == ["title", "year", "in_print"]
            assert 1500 <= book["year"] <= 2100 and type(book["in_print"]) is bool
        runs = await asyncio.gather(
            *(ask(client, **sampling, **options) for options in KINDS.values())
        )
        for run in runs:
            assert run.token_ids == plain.token_ids
            check_sums(run)


@pytest.mark.asyncio
async def test_forced_tokens_save_a_quarter_of_the_steps_and_are_nearly_always_right(
    daemon: Daemon,
) -> None:
    async with Client(daemon.address) as client:
        run = await ask(client, temperature=0.8, seed=1, drafters=["grammar"])
        total = run.speculation.total
        assert total.verify_steps <= 0.75 * run.usage.completion_tokens
        assert total.accepted_draft_tokens >= 0.9 * total.draft_tokens


@pytest.mark.asyncio
async def test_a_choice_is_one_of_them_and_a_regex_matches(daemon: Daemon) -> None:
    choices = ["Paris", "Paris, Texas", "London"]
    async with Client(daemon.address) as client:
        wish: dict[str, Any] = {"temperature": 0, "max_new_tokens": 40}
        city = await client.generate("The capital of France is ", choice=choices, **wish)
        assert city.text in choices
        number = await client.generate("Call me at ", regex="[0-9]{3}-[0-9]{4}", **wish)
        assert re.fullmatch("[0-9]{3}-[0-9]{4}", number.text)
