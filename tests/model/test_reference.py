"""specd in fp32 computes what transformers computes from the same file.

The stored values come from scripts/reference_logits. An error is relative to the norm of the
reference's sampled logits (the sample is fixed, 256 ids); logits of the 32 likeliest ids are
compared relative to the largest of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.device.texts import Feeder, Part, Text, load_runner, torch_threads

pytestmark = pytest.mark.model

STORED = json.loads((Path(__file__).parents[1] / "data" / "reference_logits.json").read_text())
CASES: list[dict[str, Any]] = STORED["cases"]
TOLERANCE = 1e-4  # measured: 6e-6


@pytest.fixture(scope="module")
def feeder(default_model_path: Path) -> Iterator[Feeder]:
    with torch_threads(torch.get_num_threads()):
        yield Feeder(load_runner(default_model_path, "fp32"))


def prefill(feeder: Feeder, ids: list[int]) -> torch.Tensor:
    """The logits behind the last id."""
    text = Text(ids)
    feeder.run([Part(text, len(ids), chunk=True)])
    feeder.close(text)
    return text.logits[len(ids) - 1]


def error(found: torch.Tensor, wanted: list[float]) -> float:
    reference = torch.tensor(wanted)
    return float((found - reference).norm() / reference.norm())


def test_the_reference_was_made_from_this_file(default_model_path: Path) -> None:
    with default_model_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == STORED["model_sha256"]


def test_the_reference_covers_short_long_and_boundary_prompts() -> None:
    lengths = {len(case["ids"]) for case in CASES}
    assert len(CASES) >= 20 and {1, 31, 32, 33, 127, 128, 130} <= lengths


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{len(case['ids'])} tokens")
def test_logits_agree_with_transformers(feeder: Feeder, case: dict[str, Any]) -> None:
    row = prefill(feeder, case["ids"])
    sampled, largest = row[STORED["sampled_ids"]], row[case["largest_ids"]]
    assert error(sampled, case["sampled_logits"]) < TOLERANCE
    scale = max(abs(value) for value in case["largest_logits"])
    gaps = (largest - torch.tensor(case["largest_logits"])).abs()
    assert float(gaps.max()) < TOLERANCE * scale
    assert float(row.norm()) == pytest.approx(case["norm"], rel=TOLERANCE)


def test_the_order_of_the_likeliest_tokens_agrees(feeder: Feeder) -> None:
    for case in CASES:
        found = prefill(feeder, case["ids"]).topk(5).indices.tolist()
        assert found == case["largest_ids"][:5]


def test_greedy_tokens_agree_with_transformers(feeder: Feeder) -> None:
    for case in CASES:
        ids = [*case["ids"], *case["greedy"]]
        text = Text(ids)
        feeder.run([Part(text, len(case["ids"]), chunk=True)])
        # All 16 at once: each is the argmax behind the tokens before it.
        feeder.run([Part(text, text.left)])
        feeder.close(text)
        found = [int(text.logits[at].argmax()) for at in range(len(case["ids"]) - 1, len(ids) - 1)]
        assert found == case["greedy"]
