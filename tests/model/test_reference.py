"""specd in fp32 computes what transformers computes from the same file.

The stored values come from scripts/reference_logits. An error is relative to the norm of the
reference's sampled logits (the sample is fixed, 256 ids); logits of the 32 likeliest ids are
compared relative to the largest of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from specd.device.texts import Feeder, Part, Text
from specd.model.pull import pull
from tests.unit.device.texts import load_runner, torch_threads

DATA = Path(__file__).parents[1] / "data"
# By the end of the stored file's name: the model, and lengths of prompts that are among the cases.
NAMES = {
    "logits": ("smollm2-135m", {1, 31, 32, 33, 127, 128, 130}),
    "qwen2": ("qwen2.5-coder-0.5b", {1, 33, 130}),
}
MODELS = (
    pytest.param("logits", id="smollm2", marks=pytest.mark.model),
    pytest.param("qwen2", id="qwen2", marks=pytest.mark.large),
)
TOLERANCE = 1e-4  # measured: 6e-6, for both


@dataclass(frozen=True)
class Reference:
    """A model, and what transformers computed from its file."""

    path: Path
    stored: dict[str, Any]
    lengths: set[int]
    feeder: Feeder

    @property
    def cases(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.stored["cases"]
        return found

    def prefill(self, ids: list[int]) -> torch.Tensor:
        """The logits behind the last id."""
        text = Text(ids)
        self.feeder.run([Part(text, len(ids), chunk=True)])
        self.feeder.close(text)
        return text.logits[len(ids) - 1]


@pytest.fixture(scope="module", params=MODELS)
def reference(request: pytest.FixtureRequest) -> Iterator[Reference]:
    name, lengths = NAMES[request.param]
    path = pull(name).path
    stored = json.loads((DATA / f"reference_{request.param}.json").read_text())
    with torch_threads(torch.get_num_threads()):
        yield Reference(path, stored, lengths, Feeder(load_runner(path, "fp32")))


def error(found: torch.Tensor, wanted: list[float]) -> float:
    expected = torch.tensor(wanted)
    return float((found - expected).norm() / expected.norm())


def test_the_reference_was_made_from_this_file(reference: Reference) -> None:
    with reference.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == reference.stored["model_sha256"]


def test_the_reference_covers_short_and_long_prompts(reference: Reference) -> None:
    lengths = {len(case["ids"]) for case in reference.cases}
    assert len(lengths) >= 8 and reference.lengths <= lengths


def test_logits_agree_with_transformers(reference: Reference) -> None:
    sample = reference.stored["sampled_ids"]
    for case in reference.cases:
        row = reference.prefill(case["ids"])
        assert error(row[sample], case["sampled_logits"]) < TOLERANCE, len(case["ids"])
        scale = max(abs(value) for value in case["largest_logits"])
        gaps = (row[case["largest_ids"]] - torch.tensor(case["largest_logits"])).abs()
        assert float(gaps.max()) < TOLERANCE * scale, len(case["ids"])
        assert float(row.norm()) == pytest.approx(case["norm"], rel=TOLERANCE)


def test_the_order_of_the_likeliest_tokens_agrees(reference: Reference) -> None:
    for case in reference.cases:
        found = reference.prefill(case["ids"]).topk(5).indices.tolist()
        assert found == case["largest_ids"][:5]


def test_greedy_tokens_agree_with_transformers(reference: Reference) -> None:
    for case in reference.cases:
        ids = [*case["ids"], *case["greedy"]]
        text = Text(ids)
        feeder = reference.feeder
        feeder.run([Part(text, len(case["ids"]), chunk=True)])
        # All 16 at once: each is the argmax behind the tokens before it.
        feeder.run([Part(text, text.left)])
        feeder.close(text)
        found = [int(text.logits[at].argmax()) for at in range(len(case["ids"]) - 1, len(ids) - 1)]
        assert found == case["greedy"]
