"""The probe finds nothing where the rules hold, and finds an operation that breaks them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.toy_gguf import build_toy_model
from specd.device.eager import EagerRunner
from specd.device.probe import probe
from specd.device.sampler import SampleJob, TorchSampler
from specd.model.formats import WeightFormat
from specd.model.linear import Linear
from tests.unit.device.texts import load_runner


@pytest.fixture(scope="module")
def toy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    build_toy_model(path, linear_type="Q4_1", embed_type="Q8_0", heads=9, kv_heads=3)
    return path


@pytest.fixture
def runner(toy_path: Path) -> EagerRunner:
    return load_runner(toy_path, "bf16")


class DependentLinear:
    """A layer that is off by one bf16 step when a number of positions pleases it."""

    def __init__(self, inner: Linear, upset: Callable[[int], bool]) -> None:
        self._inner = inner
        self._upset = upset
        self.bytes, self.format = inner.bytes, inner.format

    def __call__(self, x: Tensor) -> Tensor:
        result = self._inner(x)
        return result * (1 + 2**-7) if self._upset(x.shape[0]) else result


class DependentSampler(TorchSampler):
    """Another token for everyone where several are chosen at once."""

    def sample(self, jobs: Sequence[SampleJob]) -> list[int]:
        return [token + (len(jobs) > 1) for token in super().sample(jobs)]


@pytest.mark.parametrize("weights", ["fp32", "bf16", "int4"])
def test_nothing_is_found_on_a_strict_runner(toy_path: Path, weights: WeightFormat) -> None:
    report = probe(load_runner(toy_path, weights))
    assert report.findings == () and report.invariant
    assert report.num_checks >= 10 and report.seconds > 0


def test_weights_that_are_no_numbers_are_no_finding_about_the_machine(
    runner: EagerRunner,
) -> None:
    runner.decoder.weights.layers[0].attn_norm[3] = torch.nan
    assert probe(runner).findings == ()


def test_relaxed_fp32_is_found(toy_path: Path) -> None:
    report = probe(load_runner(toy_path, "fp32", strict=False))
    assert not report.invariant
    for name in ("qkv", "attention output", "gate and up", "down", "head"):
        assert any(finding.startswith(name) for finding in report.findings), name


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("qkv", "qkv"),
        ("attn_output", "attention output"),
        ("gate_up", "gate and up"),
        ("ffn_down", "down"),
    ],
)
@pytest.mark.parametrize("upset", [lambda count: count == 1, lambda count: count > 64], ids=str)
def test_a_layer_that_depends_on_the_number_of_positions_is_named(
    runner: EagerRunner, field: str, name: str, upset: Callable[[int], bool]
) -> None:
    weights = runner.decoder.weights
    first = weights.layers[0]
    changed: dict[str, Any] = {field: DependentLinear(getattr(first, field), upset)}
    planted = dataclasses.replace(first, **changed)
    runner.decoder.weights = dataclasses.replace(weights, layers=(planted, *weights.layers[1:]))
    (finding,) = probe(runner).findings
    assert finding.startswith(name)


def test_a_head_that_depends_on_the_number_of_rows_is_named(runner: EagerRunner) -> None:
    weights = runner.decoder.weights
    planted = DependentLinear(weights.head, lambda count: count == 5)
    runner.decoder.weights = dataclasses.replace(weights, head=planted)
    (finding,) = probe(runner).findings
    assert finding.startswith("head")


def test_attention_that_depends_on_its_neighbours_is_found(
    runner: EagerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = functional.scaled_dot_product_attention

    def dependent(query: Tensor, *rest: Any, **options: Any) -> Tensor:
        result = right(query, *rest, **options)
        return result * (1 + 2**-7) if query.shape[0] > 1 else result

    monkeypatch.setattr(functional, "scaled_dot_product_attention", dependent)
    assert any(finding.startswith("attention:") for finding in probe(runner).findings)


def test_attention_that_depends_on_its_chunk_is_found(
    runner: EagerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = functional.scaled_dot_product_attention

    def dependent(query: Tensor, *rest: Any, **options: Any) -> Tensor:
        result = right(query, *rest, **options)
        return result * (1 + 2**-7) if query.shape[2] > 64 else result

    monkeypatch.setattr(functional, "scaled_dot_product_attention", dependent)
    assert any(finding.startswith("attention:") for finding in probe(runner).findings)


def test_a_finding_is_one_check(runner: EagerRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = probe(runner).num_checks
    monkeypatch.setattr("specd.device.probe.same_bits", lambda one, other: False)
    unsound = probe(runner)
    assert unsound.num_checks == sound > len(unsound.findings) > 0


def test_the_runner_s_own_sampler_is_probed(runner: EagerRunner) -> None:
    runner.sampler = DependentSampler()
    findings = probe(runner).findings
    assert findings and all(finding.startswith("sampler: tokens of") for finding in findings)


@pytest.mark.parametrize("num_pages", [1, 2, 3])
def test_a_tiny_pool_is_probed_too(toy_path: Path, num_pages: int) -> None:
    assert probe(load_runner(toy_path, "bf16", num_pages=num_pages)).invariant
