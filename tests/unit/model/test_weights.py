"""Weights: each tensor gets one format, decided by its type and the operator's choice alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from specd.errors import ModelFileError
from specd.model.arch import ModelConfig, config_from_gguf
from specd.model.blocks import dequantise
from specd.model.formats import WeightFormat
from specd.model.gguf_file import GGUFFile
from specd.model.linear import Linear
from specd.model.weights import ModelWeights, half_split_order, load_weights
from tests.support.toy_gguf import LinearType, build_toy_model
from tests.unit.device.texts import torch_threads

FORMATS: tuple[WeightFormat, ...] = get_args(WeightFormat)
TYPES: tuple[LinearType, ...] = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def build(
    path: Path, linear_type: LinearType = "F32", embed_type: LinearType = "F32", **shape: int
) -> tuple[GGUFFile, ModelConfig]:
    build_toy_model(path, linear_type=linear_type, embed_type=embed_type, layers=1, **shape)  # type: ignore[arg-type]
    file = GGUFFile.open(path)
    return file, config_from_gguf(file.metadata)


def formats(weights: ModelWeights) -> list[str]:
    return [linear.format for linear in weights.linears()]


def effective(linear: Linear, columns: int, dtype: torch.dtype) -> Tensor:
    """The weight that a layer multiplies by, [out, in]."""
    return linear(torch.eye(columns, dtype=dtype)).float().T


@pytest.mark.parametrize("linear_type", TYPES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("weights", FORMATS)
def test_every_choice_of_weights_reads_every_type(
    tmp_path: Path, weights: WeightFormat, linear_type: LinearType, tied: bool
) -> None:
    file, config = build(tmp_path / "t.gguf", linear_type, linear_type, tied=tied)
    loaded = load_weights(file, config, weights, strict=True)
    four = linear_type in {"Q4_0", "Q4_1"}
    plain = "fp32" if weights == "fp32" else "bf16"
    inner = "int4" if weights == "int4" and four else plain
    head = "int8" if weights == "int4" and linear_type == "Q8_0" else inner
    assert formats(loaded) == [inner] * 4 + [head]
    assert loaded.dtype == (torch.float32 if weights == "fp32" else torch.bfloat16)
    assert {tensor.dtype for tensor in (loaded.embedding, loaded.final_norm)} == {loaded.dtype}


@pytest.mark.parametrize("linear_type", TYPES)
@pytest.mark.parametrize("weights", FORMATS)
def test_a_layer_multiplies_by_the_weights_of_the_file(
    tmp_path: Path, weights: WeightFormat, linear_type: LinearType
) -> None:
    file, config = build(tmp_path / "t.gguf", linear_type, "Q8_0")
    loaded = load_weights(file, config, weights, strict=True)
    layer = loaded.layers[0]

    def stacked(*names: str) -> Tensor:
        return torch.cat([dequantise(file.tensors[f"{name}.weight"]) for name in names])

    # Values keep their place; rows of queries and keys are reordered, see below.
    pairs = [
        (layer.attn_output, stacked("blk.0.attn_output"), 128),
        (layer.gate_up, stacked("blk.0.ffn_gate", "blk.0.ffn_up"), 128),
        (layer.ffn_down, stacked("blk.0.ffn_down"), 256),
        (loaded.head, stacked("token_embd"), 128),
    ]
    # Of the largest weight: nothing is lost in fp32; bf16 keeps 8 bits; int4 rounds the scale and
    # the minimum of a group to that, int8 has one step per row.
    allowed = {"fp32": 0.0, "bf16": 2**-8, "int4": 2**-6, "int8": 2**-7}
    for linear, wanted, columns in pairs:
        error = (effective(linear, columns, loaded.dtype) - wanted).abs().max()
        assert float(error / wanted.abs().max()) <= allowed[linear.format], linear.format


def test_queries_and_keys_are_reordered_from_pairs_to_halves(tmp_path: Path) -> None:
    file, config = build(tmp_path / "t.gguf")
    layer = load_weights(file, config, "fp32", strict=True).layers[0]
    found = effective(layer.qkv, 128, torch.float32)
    query, key, value = (
        dequantise(file.tensors[f"blk.0.attn_{part}.weight"]) for part in ("q", "k", "v")
    )

    def halves(rows: Tensor, heads: int) -> Tensor:
        pairs = rows.view(heads, -1, 2, 128)
        return torch.cat([pairs[:, :, 0], pairs[:, :, 1]], 1).reshape(-1, 128)

    assert torch.equal(found, torch.cat([halves(query, 4), halves(key, 2), value]))


def test_the_reordering_of_one_head_is_the_expected_one() -> None:
    assert half_split_order(1, 8).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert half_split_order(2, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_rows_that_are_no_whole_tiles_are_kept_in_bf16(tmp_path: Path) -> None:
    """Torch's packed int4 takes whole tiles of 16 rows; 300 ids are none."""
    file, config = build(tmp_path / "t.gguf", "Q4_1", "Q4_1", vocab=300, tied=False)
    loaded = load_weights(file, config, "int4", strict=True)
    assert formats(loaded) == ["int4"] * 4 + ["bf16"]


def test_an_own_head_is_preferred_to_the_embedding(tmp_path: Path) -> None:
    file, config = build(tmp_path / "t.gguf", tied=False)
    loaded = load_weights(file, config, "fp32", strict=True)
    head = effective(loaded.head, 128, torch.float32)
    assert torch.equal(head, dequantise(file.tensors["output.weight"]))
    assert not torch.equal(head, loaded.embedding)


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    file, config = build(tmp_path / "t.gguf")
    loaded = load_weights(file, config, "fp32", strict=True)
    assert torch.equal(effective(loaded.head, 128, torch.float32), loaded.embedding)


def test_loading_leaves_the_file_s_data_alone(tmp_path: Path) -> None:
    file, config = build(tmp_path / "t.gguf", "Q4_1", "Q8_0")
    before = {name: tensor.data.copy() for name, tensor in file.tensors.items()}
    for weights in FORMATS:
        load_weights(file, config, weights, strict=True)
    assert all((file.tensors[name].data == data).all() for name, data in before.items())


def test_widths_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    file, config = build(tmp_path / "t.gguf", heads=3, kv_heads=1, head_dim=16)
    with pytest.raises(ModelFileError, match="embedding_length is 48"):
        load_weights(file, config, "fp32", strict=True)


def test_a_block_type_of_another_version_is_refused_by_tensor(tmp_path: Path) -> None:
    file, config = build(tmp_path / "t.gguf", "Q5_1")
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.weight.*Q5_1"):
        load_weights(file, config, "fp32", strict=True)
