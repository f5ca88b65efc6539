"""The daemon on the real default model: text that reads as text, the law, and a short soak.

SPECD_SOAK_SECONDS says how long the soak runs; the full run is 60.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client, FinishReason

from tests.e2e.calls import answer, check_sums
from tests.e2e.soak import Soak, solo_cases
from tests.support.daemon import Daemon, daemon_process

pytestmark = pytest.mark.model
SECONDS = float(os.environ.get("SPECD_SOAK_SECONDS", "10"))
MAX_RSS_GROWTH = 256 << 20
CODE = """def area(width, height):
    return width * height


def volume(width, height, depth):
    return width * height * depth
"""
PROMPTS = (
    "The capital of France is",
    f"{CODE}\n\n{CODE}",
    "1, 2, 3, 4, 5, 6, 7, 8, 9,",
    "Once upon a time, in a village by the sea,",
    '[{"name": "Ada", "age": 36}, {"name": "Alan", "age": 41}, {"name": "Grace",',
    "한국의 수도는",
)


@pytest.fixture(scope="module")
def daemon(default_model_path: Path) -> Iterator[Daemon]:
    flags = ("--drafter", "ngram", "--weights", "int4", "--kv-memory", "512M")
    with daemon_process(default_model_path, *flags) as daemon:
        yield daemon


@pytest.mark.asyncio
async def test_it_knows_the_capital_of_france(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        text = await client.generate(PROMPTS[0], temperature=0, max_new_tokens=4)
    assert "Paris" in text.text


@pytest.mark.asyncio
async def test_it_answers_a_question_and_knows_when_to_stop(default_model_path: Path) -> None:
    """In bf16, which agrees with fp32: with 8-bit activations the first token is a near tie."""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    flags = ("--weights", "bf16", "--kv-memory", "512M")
    with daemon_process(default_model_path, *flags) as daemon:
        async with Client(daemon.address) as client:
            chat = await client.generate(messages=question, temperature=0, max_new_tokens=40)
    assert "is the capital of France" in chat.text or "capital of France is" in chat.text
    assert chat.finish_reason is FinishReason.EOS_TOKEN


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 5}])
@pytest.mark.asyncio
async def test_n_gram_drafts_change_no_token_of_an_edit_and_save_steps(
    daemon: Daemon, sampling: dict[str, Any]
) -> None:
    options = sampling | {"max_new_tokens": 60, "ignore_eos": True}
    async with Client(daemon.address) as client:
        plain = await answer(client, PROMPTS[1], speculation=False, **options)
        drafted = await answer(client, PROMPTS[1], **options)
    assert drafted.token_ids == plain.token_ids
    assert drafted.text == plain.text
    check_sums(drafted)
    assert drafted.speculation.total.accepted_draft_tokens > 0
    assert drafted.speculation.total.verify_steps < plain.speculation.total.verify_steps


@pytest.mark.asyncio
async def test_the_probe_finds_no_fault_and_strict_is_promised(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        info = await client.server_info()
    assert not info.probe_findings
    assert info.weights == "int4"


@pytest.mark.soak
@pytest.mark.asyncio
async def test_survivors_get_their_solo_tokens_and_nothing_is_left(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        cases = await solo_cases(client, PROMPTS, 24)
        soak = Soak(client, cases, lambda choose: choose.choice([["ngram"], None]))
        report = await soak.run(daemon, SECONDS)
    assert report.outcomes["stay"] > 0
    assert report.rss_growth < MAX_RSS_GROWTH
    print(report)  # noqa: T201  # shown by `pytest -s`
