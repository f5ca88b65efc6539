"""Every family computes what transformers computes from the same numbers, and keeps its bits.

Toys are small and random; windows are shorter than the texts, and texts are longer than what a
window lets a layer skip. Errors are relative to the norm of a position's logits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from benchmarks.toy_gguf import build_toy_model
from specd.device.texts import Feeder, Part, Text, differing, random_chunks, random_ids
from specd.errors import ModelFileError
from tests.support.transformers_twin import transformers_twin
from tests.unit.device.texts import load_runner, torch_threads

LENGTH = 300  # a window below 45 skips the first 128 positions at the end
VOCAB = 300
TOLERANCE = 1e-4  # measured: 2e-5


@dataclass(frozen=True)
class Case:
    """toy: of `build_toy_model`. settings: of the GGUF file. theirs: of transformers' config."""

    toy: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    theirs: Mapping[str, Any] = field(default_factory=dict)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA3_KEYS: dict[str, Any] = {
    "rope.scaling.type": "llama3",
    "rope.scaling.factor": 8.0,
    "rope.scaling.low_freq_factor": 1.0,
    "rope.scaling.high_freq_factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
LINEAR_KEYS: dict[str, Any] = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
GEMMA: dict[str, Any] = {"architecture": "gemma3", "layers": 7, "hidden": 96, "head_dim": 32}


def gemma(theta: float = 10000.0, **full: Any) -> dict[str, Any]:
    return {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0} | full,
            "sliding_attention": {"rope_type": "default", "rope_theta": theta},
        }
    }


CASES: dict[str, Case] = {
    "llama": Case({}),
    "llama3 in metadata": Case({}, LLAMA3_KEYS, {"rope_parameters": LLAMA3}),
    "linear": Case({}, LINEAR_KEYS, {"rope_parameters": LINEAR}),
    "mistral": Case(
        {"layers": 3},
        {"attention.sliding_window": 40},
        {"kind": "mistral", "sliding_window": 40},
    ),
    "qwen2": Case({"architecture": "qwen2"}),
    "qwen2 with windows above": Case(
        {"architecture": "qwen2", "layers": 3},
        {
            "attention.sliding_window": 150,
            "attention.sliding_window_pattern": [False, True, True],
        },
        {
            "sliding_window": 150,
            "use_sliding_window": True,
            "layer_types": ["full_attention", *["sliding_attention"] * 2],
        },
    ),
    "qwen3": Case({"architecture": "qwen3", "hidden": 96}),
    "gemma3": Case(
        GEMMA,
        {"attention.sliding_window": 32},
        gemma() | {"sliding_window": 32, "query_pre_attn_scalar": 32},
    ),
    "gemma3 with scales": Case(
        GEMMA,
        {
            "attention.sliding_window": 40,
            "attention.sliding_window_pattern": 3,
            "attention.scale": 24**-0.5,
            "rope.freq_base_swa": 500.0,
            **LINEAR_KEYS,
        },
        gemma(500.0, **LINEAR)
        | {"sliding_window": 40, "sliding_window_pattern": 3, "query_pre_attn_scalar": 24},
    ),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def build(path: Path, case: Case, **more: Any) -> Path:
    build_toy_model(path, vocab=VOCAB, settings=case.settings, **(dict(case.toy) | more))
    return path


IDS = random_ids(VOCAB, LENGTH, seed=2)


def wanted_logits(path: Path, theirs: Mapping[str, Any]) -> torch.Tensor:
    return transformers_twin(path, **theirs)(torch.tensor([IDS])).logits[0]


def worst(text: Text, wanted: torch.Tensor) -> float:
    """The largest error of any position that was sampled."""
    assert text.logits
    return max(
        float((row - wanted[at]).norm() / wanted[at].norm()) for at, row in text.logits.items()
    )


def whole(feeder: Feeder) -> Text:
    """All positions in one step, each sampled."""
    text = Text(IDS)
    feeder.run([Part(text, LENGTH)])
    feeder.close(text)
    return text


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", CASES)
def test_a_family_equals_transformers_in_any_steps(tmp_path: Path, name: str, tied: bool) -> None:
    """i01, i07: heads of their own or the embedding; biases of queries, keys and values."""
    case = CASES[name]
    path = build(tmp_path / "toy.gguf", case, tied=tied)
    wanted = wanted_logits(path, case.theirs)
    feeder = Feeder(load_runner(path, "fp32"))
    assert worst(whole(feeder), wanted) < TOLERANCE
    chunked = feeder.in_chunks(IDS, random_chunks(LENGTH, random.Random(1)))
    assert worst(chunked, wanted) < TOLERANCE
    assert worst(feeder.one_at_a_time(IDS, prefix=250), wanted) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_relaxed_steps_compute_the_same(tmp_path: Path, name: str) -> None:
    path = build(tmp_path / "toy.gguf", CASES[name])
    strict, relaxed = (load_runner(path, "fp32", strict=strict) for strict in (True, False))
    wanted = torch.stack([row for _, row in sorted(whole(Feeder(strict)).logits.items())])
    feeder = Feeder(relaxed)
    assert worst(whole(feeder), wanted) < TOLERANCE
    assert worst(feeder.one_at_a_time(IDS, prefix=290), wanted) < TOLERANCE


def test_a_window_hides_whole_blocks_of_the_kernel(tmp_path: Path) -> None:
    """Relaxed rows are not cut: of 576 KV positions torch's first block of 512 is hidden."""
    case = Case({"layers": 1, "context_length": 1100}, {"attention.sliding_window": 40})
    path = build(tmp_path / "toy.gguf", case)
    ids = random_ids(VOCAB, 1024, seed=1)
    rows = []
    for strict in (True, False):
        feeder = Feeder(load_runner(path, "fp32", strict=strict))
        rows.append(feeder.in_chunks(ids, [512, 512]).logits[1023])
    assert float((rows[0] - rows[1]).norm() / rows[0].norm()) < TOLERANCE


def llama3_divisors(head_dim: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What llama.cpp's converter stores, from transformers' own function."""
    from transformers import LlamaConfig

    scaled = LlamaConfig(head_dim=head_dim, rope_parameters=dict(LLAMA3))
    frequency, _ = ROPE_INIT_FUNCTIONS["llama3"](scaled, "cpu")
    plain = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    divisors: np.ndarray[Any, np.dtype[np.float32]] = (plain / frequency).float().numpy()
    assert divisors.min() < 1.01 and divisors.max() > 7.9
    return divisors


def test_i03_rotary_factors_of_a_file_are_used(tmp_path: Path) -> None:
    path, plain = tmp_path / "toy.gguf", tmp_path / "plain.gguf"
    build(path, Case({}), extra_tensors={"rope_freqs.weight": llama3_divisors(32)})
    build(plain, Case({}))
    wanted = wanted_logits(path, {"rope_parameters": dict(LLAMA3)})
    assert worst(whole(Feeder(load_runner(path, "fp32"))), wanted) < TOLERANCE
    assert worst(whole(Feeder(load_runner(plain, "fp32"))), wanted) > 0.1


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [("qwen3", {}), ("llama", LLAMA3_KEYS), ("llama", LINEAR_KEYS)],
    ids=str,
)
def test_rotary_factors_beside_other_scaling_or_in_other_families_are_refused(
    tmp_path: Path, architecture: str, settings: dict[str, Any]
) -> None:
    path = build(
        tmp_path / "toy.gguf",
        Case({"architecture": architecture}, settings),
        extra_tensors={"rope_freqs.weight": llama3_divisors(32)},
    )
    with pytest.raises(ModelFileError, match=r"does not use: rope_freqs\.weight"):
        load_runner(path, "fp32")


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_rotary_factors_that_are_no_divisors_are_refused(tmp_path: Path, bad: float) -> None:
    factors = llama3_divisors(32)
    factors[3] = bad
    path = build(tmp_path / "toy.gguf", Case({}), extra_tensors={"rope_freqs.weight": factors})
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight should hold positive numbers"):
        load_runner(path, "fp32")


def biases(layers: int = 2) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    rng = np.random.default_rng(5)
    sizes = {"q": 128, "k": 64, "v": 64, "output": 128}
    return {
        f"blk.{layer}.attn_{part}.bias": rng.normal(0, 0.5, size).astype(np.float32)
        for layer in range(layers)
        for part, size in sizes.items()
    }


def test_biases_of_a_llama_are_added_in_the_order_of_its_rows(tmp_path: Path) -> None:
    path = build(tmp_path / "toy.gguf", Case({}), extra_tensors=biases())
    wanted = wanted_logits(path, {})
    assert worst(whole(Feeder(load_runner(path, "fp32"))), wanted) < TOLERANCE


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_lone_bias_is_refused_by_what_is_missing(tmp_path: Path, architecture: str) -> None:
    """A Qwen2 without biases, and a Llama with one of the three."""
    build_toy_model(
        path := tmp_path / "toy.gguf",
        architecture=architecture,
        extra_tensors={"blk.0.attn_k.bias": np.ones(64, np.float32)}
        if architecture == "llama"
        else None,
    )
    if architecture == "qwen2":
        data = path.read_bytes().replace(b"blk.0.attn_q.bias", b"blk.0.attn_Q.bias")
        path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"no tensor blk\.0\.attn_q\.bias"):
        load_runner(path, "fp32")


BIT_CASES = {
    "qwen2": CASES["qwen2"],
    "mistral": CASES["mistral"],
    "wide window": CASES["qwen2 with windows above"],
    "qwen3": CASES["qwen3"],
    "gemma3": CASES["gemma3 with scales"],
}


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize("name", BIT_CASES)
def test_no_bit_depends_on_company_or_steps(tmp_path: Path, name: str, weights: Any) -> None:
    """One position at a time and alone, against steps with wrong drafts, neighbours and chunks."""
    feeder = Feeder(load_runner(build(tmp_path / "toy.gguf", BIT_CASES[name]), weights))
    alone = feeder.one_at_a_time(IDS, prefix=100)
    rng = random.Random(4)
    drafted = Text(IDS)
    feeder.run([Part(drafted, 100, chunk=True)])
    feeder.random_widths([drafted], rng)
    assert differing(drafted, alone, start=100) == 0
    accompanied = Text(IDS)
    feeder.run([Part(accompanied, 100, chunk=True)])
    others = [Text(random_ids(VOCAB, length, seed=length)) for length in (150, 33, 270)]
    feeder.random_widths([accompanied, *others], rng)
    assert differing(accompanied, alone, start=100) == 0
    for chunks in ([LENGTH], [127, 173], random_chunks(LENGTH, rng)):
        assert differing(feeder.in_chunks(IDS, chunks), alone) == 0


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_no_bit_depends_on_how_work_is_split_between_threads(tmp_path: Path, weights: Any) -> None:
    """A chunk of 300 is large enough for torch to split every operation of a step."""
    path = build(tmp_path / "toy.gguf", CASES["gemma3"], ffn=96)
    feeder = Feeder(load_runner(path, weights))
    with torch_threads(3):
        alone = feeder.one_at_a_time(IDS, prefix=250)
        drafted = Text(IDS)
        feeder.run([Part(drafted, LENGTH)])
        assert differing(drafted, alone, start=250) == 0


@pytest.mark.parametrize("name", BIT_CASES)
def test_the_bit_check_fails_where_the_rules_are_off(tmp_path: Path, name: str) -> None:
    path = build(tmp_path / "toy.gguf", BIT_CASES[name])
    relaxed = Feeder(load_runner(path, "fp32", strict=False))
    text = Text(IDS)
    relaxed.run([Part(text, 250, chunk=True)])
    relaxed.random_widths([text], random.Random(1))
    assert differing(text, relaxed.one_at_a_time(IDS, prefix=250), start=250) > 10
