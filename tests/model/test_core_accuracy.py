"""What 8-bit activations, fp16 keys and values and unwidened blocks cost, on real text.

The same file in fp32 is the measure: its blocks as the numbers that they are, no activation
rounded. Every instruction set found the same figures, so the one that is chosen here runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specd.device.texts import Feeder, Part, Text
from specd.model.formats import WeightFormat
from specd.model.gguf_file import GGUFFile
from specd.text.tokenizer import Tokenizer
from tests.unit.device.texts import CORE_KERNELS, load_any, torch_threads

pytestmark = pytest.mark.model

TEXT = """
A lighthouse keeper writes down the weather every three hours, and nobody reads what he writes until
something goes wrong. On the night of the ninth of March the wind turned to the north-east and rose
quickly. At ten o'clock the barometer had fallen by eleven millimetres, the rain came in sideways,
and the lamp, which burns paraffin and turns on a bath of mercury, had to be wound by hand because
the weights would not go down. The keeper and his assistant took turns. Towards two in the morning
they saw a red rocket to the west, about four miles out, and then a second one much closer.

The nearest lifeboat lay in the harbour behind the headland. There was a telephone, but
the line had been down since Christmas, so the assistant put on his oilskins and walked the six
miles along the cliff. It took him two hours and a half. By the time the boat was launched, the
steamer had already drifted past the rocks and was lying quietly in the lee of the island with her
anchor down and all of her people on board. The captain was asked later why he had fired the
rockets. He said that he had wanted to know whether anybody was awake.

In his report the keeper mentions the barometer, the rain and the rockets. He does not mention the
walk. "Assistant absent from two until seven," it says, "on duty."
"""
LEAST_IDS = 300


@pytest.fixture(scope="module")
def ids(default_model_path: Path) -> list[int]:
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(default_model_path).metadata)
    found = tokenizer.encode(TEXT, parse_special=False, add_special=False)
    assert len(found) >= LEAST_IDS
    return found


@pytest.fixture(scope="module", autouse=True)
def two_threads() -> Iterator[None]:
    with torch_threads(2):
        yield


def log_probabilities(path: Path, weights: WeightFormat, kernels: str, ids: list[int]) -> Tensor:
    """[positions, vocab], fp64."""
    feeder, text = Feeder(load_any(path, weights, kernels)), Text(ids)
    feeder.run([Part(text, len(ids))])
    logits = torch.stack([text.logits[at] for at in range(len(ids))])
    return logits.double().log_softmax(-1)


@pytest.fixture(scope="module")
def exact(default_model_path: Path, ids: list[int], two_threads: None) -> Tensor:
    return log_probabilities(default_model_path, "fp32", "torch", ids)


def compare(found: Tensor, exact: Tensor) -> tuple[float, float]:
    """(mean KL divergence in nats, share of positions whose likeliest token is the same)."""
    divergence = (exact.exp() * (exact - found)).sum(-1)
    agreement = (found.argmax(-1) == exact.argmax(-1)).double().mean()
    return float(divergence.mean()), float(agreement)


each_kernels = pytest.mark.parametrize("kernels", CORE_KERNELS[:1])


@each_kernels
def test_auto_stays_near_fp32(
    default_model_path: Path, ids: list[int], exact: Tensor, kernels: str
) -> None:
    """Measured over 309 positions: 0.0033 nats, and 95.5% of the likeliest tokens."""
    found = log_probabilities(default_model_path, "auto", kernels, ids)
    divergence, agreement = compare(found, exact)
    assert divergence < 0.006 and agreement >= 0.93


@each_kernels
def test_fp32_is_fp32(
    default_model_path: Path, ids: list[int], exact: Tensor, kernels: str
) -> None:
    """Measured: 3e-11 nats."""
    found = log_probabilities(default_model_path, "fp32", kernels, ids)
    divergence, agreement = compare(found, exact)
    assert divergence < 1e-8 and agreement == 1
