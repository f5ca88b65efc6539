"""The soak on a toy: 32 streams with every kind of drafter, most of which leave early.

SPECD_SOAK_SECONDS says for how long; the full run is 60.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client

from tests.e2e.calls import PROMPTS, tokenized
from tests.e2e.drafters_under_test import RECORDING, spec
from tests.e2e.soak import Soak, solo_cases
from tests.support.daemon import running_daemon

SECONDS = float(os.environ.get("SPECD_SOAK_SECONDS", "8"))
KINDS = ("oracle", "greedy", "wrong", "ragged", "raising", "negative", "sleeping_async")
DRAFTERS = ("ngram", *map(spec, KINDS))
MAX_RSS_GROWTH = 64 << 20


def _draw(choose: random.Random) -> list[str]:
    return choose.sample(DRAFTERS, choose.randrange(1, 4))


@pytest.mark.soak
@pytest.mark.asyncio
async def test_survivors_get_their_solo_tokens_and_nothing_is_left(
    toy: Path, tmp_path: Path, record_property: Any
) -> None:
    recording = tmp_path / "recording.json"
    flags = [part for name in DRAFTERS for part in ("--drafter", name)]
    async with running_daemon(
        toy,
        *(*flags, "--max-rows", "16"),
        env={RECORDING: str(recording)},
        cwd=Path(__file__).parent,
        with_failing_drafters=True,
    ) as daemon:
        async with Client(daemon.address) as client:
            cases = await solo_cases(client, PROMPTS, 60)
            texts = [[*await tokenized(client, case.prompt), *case.token_ids] for case in cases]
            recording.write_text(json.dumps(texts))
            report = await Soak(client, cases, _draw).run(daemon, SECONDS)
    record_property("soak", str(report))
    assert report.outcomes["stay"] > 5 * SECONDS
    assert report.accepted > 0
    assert report.rss_growth < MAX_RSS_GROWTH
    print(report)  # noqa: T201  # shown by `pytest -s`
