"""The fields of a layer hold what the model's tensors say, in the order that a step reads them.

All in fp32, where a value is the file's own; other formats are the loader's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from benchmarks.toy_gguf import build_toy_model
from specd.errors import ModelFileError
from specd.model.arch import ModelConfig, config_from_gguf
from specd.model.blocks import dequantise
from specd.model.formats import WeightFormat
from specd.model.linear import Linear
from specd.model.opening import open_model
from specd.model.source import ModelSource
from specd.model.weights import LayerWeights, ModelWeights, half_split_order, load_weights
from tests.unit.device.texts import torch_threads

HIDDEN = 128


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def build(path: Path, **toy: Any) -> tuple[ModelSource, ModelConfig]:
    build_toy_model(path, layers=1, **toy)
    source = open_model(path)
    return source, config_from_gguf(source.metadata)


def load(source: ModelSource, config: ModelConfig) -> ModelWeights:
    return load_weights(source, config, "fp32", strict=True)


def read(source: ModelSource, name: str) -> Tensor:
    return dequantise(source.tensors[name])


def effective(linear: Linear) -> Tensor:
    """The weight that a layer multiplies by, [out, in]."""
    return linear(torch.eye(HIDDEN)).T


def halves(rows: Tensor, heads: int) -> Tensor:
    """Neighbouring pairs of rows as halves of a head, by another way than the loader's."""
    pairs = rows.view(heads, -1, 2, *rows.shape[1:])
    return torch.cat([pairs[:, :, 0], pairs[:, :, 1]], 1).reshape(rows.shape)


def test_queries_and_keys_are_reordered_from_pairs_to_halves(tmp_path: Path) -> None:
    source, config = build(tmp_path / "t.gguf")
    found = effective(load(source, config).layers[0].qkv)
    query, key, value = (read(source, f"blk.0.attn_{part}.weight") for part in "qkv")
    assert torch.equal(found, torch.cat([halves(query, 4), halves(key, 2), value]))


def test_biases_are_reordered_with_their_rows(tmp_path: Path) -> None:
    names = {part: f"blk.0.attn_{part}.bias" for part in "qkv"}
    sizes = {"q": 128, "k": 64, "v": 64}
    extra = {names[part]: torch.randn(size).numpy() for part, size in sizes.items()}
    source, config = build(tmp_path / "t.gguf", extra_tensors=extra)
    found = load(source, config).layers[0].qkv_bias
    query, key, value = (read(source, name) for name in names.values())
    assert found is not None
    assert torch.equal(found, torch.cat([halves(query, 4), halves(key, 2), value]))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_rows_that_lie_as_halves_stay(tmp_path: Path, architecture: str) -> None:
    """Of every source that is no GGUF file, and of every family but Llama."""
    source, config = build(tmp_path / "t.gguf", architecture=architecture)
    if architecture == "llama":
        source = replace(source, interleaved_rope=False)
    layer = load(source, config).layers[0]
    parts = [read(source, f"blk.0.attn_{part}.weight") for part in "qkv"]
    assert torch.equal(effective(layer.qkv), torch.cat(parts))


def test_the_reordering_of_one_head_is_the_expected_one() -> None:
    assert half_split_order(1, 8).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert half_split_order(2, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


OPTIONAL = {
    "llama": set[str](),
    "qwen2": {"qkv_bias"},
    "qwen3": {"q_norm", "k_norm"},
    "gemma3": {"q_norm", "k_norm", "post_attn_norm", "post_ffn_norm"},
}


@pytest.mark.parametrize("architecture", OPTIONAL)
def test_a_family_has_its_own_vectors_and_no_others(tmp_path: Path, architecture: str) -> None:
    source, config = build(tmp_path / "t.gguf", architecture=architecture)
    layer = load(source, config).layers[0]
    required = {"attn_norm", "qkv", "attn_output", "ffn_norm", "gate_up", "ffn_down"}
    fields = set(LayerWeights.__dataclass_fields__)
    there = {name for name in fields if getattr(layer, name) is not None}
    assert there == required | OPTIONAL[architecture]
    vectors = [name for name in there if isinstance(getattr(layer, name), Tensor)]
    assert len(layer.vectors()) == len(vectors) == 2 + len(OPTIONAL[architecture])


@pytest.mark.parametrize("architecture", ["gemma3", "qwen3"])
@pytest.mark.parametrize("lacking", [True, False])
def test_norms_of_gemma_get_their_1_where_the_source_lacks_it(
    tmp_path: Path, architecture: str, lacking: bool
) -> None:
    source, config = build(tmp_path / "t.gguf", architecture=architecture)
    loaded = load(replace(source, norms_lack_offset=lacking), config)
    added = 1 if lacking and architecture == "gemma3" else 0
    layer = loaded.layers[0]
    norms = {
        "blk.0.attn_norm": layer.attn_norm,
        "blk.0.attn_q_norm": layer.q_norm,
        "output_norm": loaded.final_norm,
    }
    for name, found in norms.items():
        assert found is not None
        assert torch.equal(found, read(source, f"{name}.weight") + added)


def test_an_own_head_is_preferred_to_the_embedding(tmp_path: Path) -> None:
    source, config = build(tmp_path / "t.gguf", tied=False)
    head = effective(load(source, config).head)
    assert torch.equal(head, read(source, "output.weight"))
    assert not torch.equal(head, read(source, "token_embd.weight"))


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    source, config = build(tmp_path / "t.gguf")
    loaded = load(source, config)
    assert torch.equal(effective(loaded.head), loaded.embedding(torch.arange(512)))
    assert torch.equal(effective(loaded.head), read(source, "token_embd.weight"))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
def test_vectors_are_of_the_activation_type(tmp_path: Path, architecture: str) -> None:
    source, config = build(tmp_path / "t.gguf", architecture=architecture)
    loaded = load_weights(source, config, "bf16", strict=True)
    vectors = [*loaded.layers[0].vectors(), loaded.final_norm]
    assert {vector.dtype for vector in vectors} == {loaded.dtype} == {torch.bfloat16}


def test_loading_leaves_the_file_s_data_alone(tmp_path: Path) -> None:
    source, config = build(tmp_path / "t.gguf", linear_type="Q4_1", embed_type="Q8_0")
    before = {name: tensor.data.copy() for name, tensor in source.tensors.items()}
    for weights in get_args(WeightFormat):
        load_weights(source, config, weights, strict=True)
    assert all((source.tensors[name].data == data).all() for name, data in before.items())


@pytest.mark.parametrize(
    ("toy", "sentence"),
    [
        ({"heads": 3, "kv_heads": 1, "head_dim": 16}, "embedding_length is 48"),
        ({"ffn": 80}, "ffn is 80"),
        ({"heads": 3, "kv_heads": 1, "head_dim": 16, "hidden": 64}, "all heads is 48"),
    ],
    ids=str,
)
def test_widths_that_are_no_whole_blocks_are_refused(
    tmp_path: Path, toy: dict[str, int], sentence: str
) -> None:
    source, config = build(tmp_path / "t.gguf", **toy)
    with pytest.raises(ModelFileError, match=sentence):
        load(source, config)
