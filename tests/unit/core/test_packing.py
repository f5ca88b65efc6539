"""Packed weights are the numbers of the file: to the bit, for every block type and any block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import packed
from specd.core.packed import BF16, FORMATS, FP32, Matrix, pack
from specd.errors import ModelFileError
from specd.model.formats import FLOAT_TYPES, QUANTISED_TYPES, SUPPORTED_TYPES
from specd.model.gguf_file import TensorInfo
from tests.support.random_blocks import random_tensor, reference
from tests.unit.core.support import F32, MULTIPLE, TYPE_OF, any_blocks, same_bits

pytestmark = pytest.mark.usefixtures("needs_core")

EXACT = {
    **{kind: format for format, kind in TYPE_OF.items()},
    "F16": "fp32",  # bf16 would drop bits
    "Q3_K": "q6_k",  # whose quants hold those of 3 bits
}


def rounded(values: F32) -> F32:
    """To the nearest bf16, as torch rounds."""
    made: F32 = torch.from_numpy(values).bfloat16().float().numpy()
    return made


@st.composite
def cases(draw: st.DrawFn) -> tuple[TensorInfo, list[int] | None]:
    """A tensor of any type, size and bits, and an order of its rows."""
    kind = draw(st.sampled_from(SUPPORTED_TYPES))
    rows = draw(st.integers(1, 50))
    columns = MULTIPLE[kind] * draw(st.integers(1, 3))
    tensor = any_blocks(kind, rows, columns, draw(st.integers(0, 1 << 32)))
    order = draw(st.none() | st.permutations(range(rows)))
    return tensor, order


def ordered(tensor: TensorInfo, order: list[int] | None) -> F32:
    values = reference(tensor)
    return values if order is None else values[order]


@given(cases())
@settings(max_examples=300, deadline=None)
def test_numbers_equal_the_gguf_package_s_to_the_bit(case: tuple[TensorInfo, list[int]]) -> None:
    tensor, order = case
    made = pack(tensor, None, None if order is None else np.array(order), 1)
    assert (made.format, made.rows, made.columns) == (EXACT[tensor.type_name], *tensor.shape)
    assert same_bits(made.numbers(), ordered(tensor, order))


@given(cases(), st.sampled_from([FP32, BF16]))
@settings(max_examples=150, deadline=None)
def test_fp32_and_bf16_are_made_of_any_type(
    case: tuple[TensorInfo, list[int]], wanted: str
) -> None:
    tensor, order = case
    values = ordered(tensor, order)
    made = pack(tensor, wanted, None if order is None else np.array(order), 1)
    assert made.format == wanted
    assert same_bits(made.numbers(), values if wanted == FP32 else rounded(values))


def test_every_finite_scale_is_read_as_it_is() -> None:
    """All 63,488 of them, one per block."""
    halves = np.arange(1 << 16).astype(np.uint16)
    halves = halves[halves & 0x7C00 != 0x7C00]
    tensor = random_tensor("Q8_0", (64, len(halves) // 64 * 32))
    blocks = tensor.data.copy().reshape(-1, 34)
    blocks[:, :2] = halves.view(np.uint8).reshape(-1, 2)
    tensor = replace(tensor, data=blocks.reshape(-1))
    assert same_bits(pack(tensor, None, None, 1).numbers(), reference(tensor))


@pytest.mark.parametrize("kind", FLOAT_TYPES)
def test_numbers_that_are_none_stay_none(kind: str) -> None:
    tensor = random_tensor(kind, (17, 64))
    width = tensor.data.size // (17 * 64)
    data = tensor.data.copy().reshape(-1, width)
    exponents = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}[kind]
    for place, bits in ((5, exponents), (6, exponents | 1), (7, exponents | 1 << 8 * width - 1)):
        data[place] = np.frombuffer(bits.to_bytes(width, "little"), np.uint8)
    special = replace(tensor, data=data.reshape(-1))
    for wanted in (None, FP32, BF16):
        numbers = pack(special, wanted, None, 1).numbers()[0]
        assert numbers[5] == np.inf and np.isnan(numbers[6]) and numbers[7] == -np.inf
        assert np.isfinite(np.delete(numbers, [5, 6, 7])).all()


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("kind", QUANTISED_TYPES)
def test_any_number_of_threads_packs_the_same_bytes(kind: str, threads: int) -> None:
    tensor = any_blocks(kind, 75, MULTIPLE[kind], seed=2)
    for wanted in (None, BF16):
        one, several = (pack(tensor, wanted, None, count).data for count in (1, threads))
        assert np.array_equal(one, several)


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K", "F16"])
@pytest.mark.parametrize("wanted", [FP32, BF16])
def test_a_conversion_in_pieces_loses_no_row(
    kind: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks become numbers some rows at a time: here 32 of 75, in another order."""
    tensor = any_blocks(kind, 75, 256, seed=3)
    order = np.random.default_rng(0).permutation(75)
    whole = pack(tensor, wanted, order, 1)
    monkeypatch.setattr(packed, "_PIECE_BYTES", 32 * 256 * 4)
    pieces = pack(tensor, wanted, order, 1)
    assert np.array_equal(whole.data, pieces.data)
    values = reference(tensor)[order]
    assert same_bits(pieces.numbers(), values if wanted == FP32 else rounded(values))


@pytest.mark.parametrize("kind", SUPPORTED_TYPES)
def test_any_rows_are_read_back(kind: str) -> None:
    tensor = any_blocks(kind, 40, MULTIPLE[kind], seed=4)
    made, values = pack(tensor, None, None, 1), reference(tensor)
    for first, count in ((0, 1), (15, 2), (39, 1), (7, 30), (5, 0)):
        assert same_bits(made.numbers(first, count), values[first : first + count])
    assert same_bits(made.numbers(33), values[33:])


def test_a_matrix_keeps_nothing_of_its_file() -> None:
    for kind in SUPPORTED_TYPES:
        tensor = any_blocks(kind, 20, 256, seed=5)
        values = reference(tensor).copy()
        made = pack(tensor, None, None, 1)
        tensor.data[:] = 0
        assert same_bits(made.numbers(), values)


def test_large_and_small_matrices_begin_a_cache_line() -> None:
    sizes = [packed.memory(count) for count in (1, 100, (1 << 21) - 1, 1 << 21, (1 << 21) + 7)]
    assert [len(each) for each in sizes] == [1, 100, (1 << 21) - 1, 1 << 21, (1 << 21) + 7]
    assert all(each.ctypes.data % 64 == 0 and not each.any() for each in sizes)


def test_packed_weights_are_no_larger_than_their_blocks_by_much() -> None:
    """Scales of 6 bits are held in 8, quants of 2 bits in 4, those of 3 bits in 6."""
    for kind in QUANTISED_TYPES:
        tensor = random_tensor(kind, (64, 512))
        growth = pack(tensor, None, None, 1).data.nbytes / tensor.data.nbytes
        assert 1 <= growth <= {"Q2_K": 2.0, "Q3_K": 2.0}.get(kind, 1.06), (kind, growth)


def test_a_block_type_that_is_not_supported_is_refused_by_name() -> None:
    tensor = TensorInfo("blk.0.ffn_up.weight", "IQ4_NL", (16, 32), np.zeros(16 * 18, np.uint8))
    with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_up\.weight has block type IQ4_NL"):
        pack(tensor, None, None, 1)


def test_every_format_has_a_type_that_is_packed_into_it() -> None:
    assert set(EXACT.values()) == set(FORMATS) == set(TYPE_OF)
    assert EXACT.keys() == set(SUPPORTED_TYPES)
    for kind, format in EXACT.items():
        made: Matrix = pack(random_tensor(kind, (16, 256)), None, None, 1)
        assert made.format == format
