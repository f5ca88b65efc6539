"""Blocks become the numbers that the field's own library reads from them, to the bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.errors import ModelFileError
from specd.model.blocks import BLOCK, SUPPORTED_TYPES, dequantise, eight_bit, four_bit
from specd.model.gguf_file import TensorInfo

# Where the fp16 numbers of a block lie, in bytes.
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,)}
SHAPES = [(64,), (1, 32), (3, 96), (2, 5, 64)]
Bytes = npt.NDArray[np.uint8]


def random_tensor(type_name: str, shape: tuple[int, ...], seed: int) -> TensorInfo:
    """Any bytes that a file may hold, but for numbers that are no numbers."""
    kind = GGMLQuantizationType[type_name]
    per_block, block_bytes = GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (np.prod(shape) // per_block, block_bytes), np.uint8)
    for place in HALVES.get(type_name, ()):
        scales = random.normal(0, 10.0 ** random.integers(-6, 3), len(raw)).astype(np.float16)
        raw[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    if type_name in {"F32", "F16", "BF16"}:
        values = random.normal(0, 100, np.prod(shape)).astype(np.float32)
        values[::7], values[1::7] = 0.0, -0.0
        raw = quantize(values, kind).view(np.uint8)
    return TensorInfo("w", type_name, shape, raw.reshape(-1))


def reference(tensor: TensorInfo) -> npt.NDArray[np.float32]:
    kind = GGMLQuantizationType[tensor.type_name]
    per_block, block_bytes = GGML_QUANT_SIZES[kind]
    row = tensor.shape[-1] // per_block * block_bytes
    data = tensor.data.reshape(*tensor.shape[:-1], row)
    if tensor.type_name in {"F32", "F16"}:
        data = data.view(np.float32 if tensor.type_name == "F32" else np.float16)
    values: npt.NDArray[np.float32] = dequantize(data, kind)
    return values


def bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


def test_the_types_of_this_version_are_these() -> None:
    assert set(SUPPORTED_TYPES) == {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"}


@pytest.mark.parametrize("type_name", SUPPORTED_TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_numbers_equal_the_reference_to_the_bit(
    type_name: str, shape: tuple[int, ...], seed: int
) -> None:
    tensor = random_tensor(type_name, shape, seed)
    found = dequantise(tensor)
    assert found.dtype == torch.float32 and tuple(found.shape) == shape
    assert np.array_equal(bits(found.numpy()), bits(reference(tensor)).reshape(shape))


@pytest.mark.parametrize("type_name", SUPPORTED_TYPES)
def test_quantised_data_comes_back_as_the_reference_reads_it(type_name: str) -> None:
    kind = GGMLQuantizationType[type_name]
    values = np.random.default_rng(1).normal(0, 1, (4, 128)).astype(np.float32)
    data = quantize(values, kind)
    tensor = TensorInfo("w", type_name, values.shape, data.reshape(-1).view(np.uint8))
    found = dequantise(tensor).numpy()
    assert np.array_equal(bits(found), bits(dequantize(data, kind)))
    assert float(np.abs(found - values).max()) < 0.3


@pytest.mark.parametrize("type_name", ["F16", "BF16", "F32"])
def test_infinities_and_the_smallest_numbers_survive(type_name: str) -> None:
    values = np.zeros(32, np.float32)
    values[:4] = [np.inf, -np.inf, 2.0**-24, -(2.0**-24)]
    data = quantize(values, GGMLQuantizationType[type_name]).view(np.uint8)
    found = dequantise(TensorInfo("w", type_name, (32,), data)).numpy()
    assert np.array_equal(bits(found), bits(values))


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_the_four_bit_view_says_the_same_weights(type_name: str, seed: int) -> None:
    tensor = random_tensor(type_name, (3, 96), seed)
    view = four_bit(tensor)
    assert view is not None
    assert view.quants.shape == (3, 96) and view.quants.max() <= 15
    assert view.scale.shape == view.minimum.shape == (3, 3)
    scale, minimum = (
        np.repeat(each, BLOCK, 1).astype(float) for each in (view.scale, view.minimum)
    )
    weights = scale * view.quants + minimum
    # Exact but for one rounding of the product and one of the sum.
    wanted = dequantise(tensor).numpy()
    assert np.allclose(weights, wanted, rtol=1e-6, atol=float(np.abs(wanted).max()) * 1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_the_eight_bit_view_says_the_same_weights(seed: int) -> None:
    tensor = random_tensor("Q8_0", (3, 96), seed)
    view = eight_bit(tensor)
    assert view is not None
    assert view.quants.shape == (3, 96) and view.scale.shape == (3, 3)
    weights = np.repeat(view.scale, BLOCK, 1) * view.quants.astype(np.float32)
    assert np.array_equal(bits(weights), bits(dequantise(tensor).numpy()))


def test_views_of_other_types_are_none() -> None:
    for type_name in SUPPORTED_TYPES:
        tensor = random_tensor(type_name, (2, 32), 0)
        assert (four_bit(tensor) is None) == (type_name not in {"Q4_0", "Q4_1"})
        assert (eight_bit(tensor) is None) == (type_name != "Q8_0")


def test_changing_the_numbers_leaves_the_file_alone() -> None:
    tensor = random_tensor("F32", (2, 32), 0)
    before: Bytes = tensor.data.copy()
    dequantise(tensor).zero_()
    assert np.array_equal(tensor.data, before)


@pytest.mark.parametrize("type_name", ["Q5_0", "Q5_1", "Q2_K", "Q4_K", "Q6_K", "IQ4_NL", "I32"])
def test_a_type_of_another_version_is_refused_by_name(type_name: str) -> None:
    tensor = TensorInfo("blk.3.attn_q.weight", type_name, (1, 256), np.zeros(512, np.uint8))
    with pytest.raises(ModelFileError) as refusal:
        dequantise(tensor)
    sentence = str(refusal.value)
    assert "blk.3.attn_q.weight" in sentence and type_name in sentence
    assert all(known in sentence for known in SUPPORTED_TYPES)
