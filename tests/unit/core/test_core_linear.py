"""A packed layer multiplies what it holds, and no output depends on its company.

Quantised weights meet activations of 8 bits; expectations quantise them the same way and multiply
in float64. Errors are relative to the sum of the sizes of all products.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from specd.core.layouts import LANES
from specd.core.linear import CoreLinear
from specd.core.packed import FORMATS, Matrix, pack
from tests.support.random_blocks import HALVES, random_tensor
from tests.unit.core.support import (
    F32,
    F64,
    ISAS,
    TYPE_OF,
    activations,
    any_blocks,
    as_multiplied,
    multiply,
    packed,
    product,
    same_bits,
    shifted,
    steps,
)

pytestmark = pytest.mark.usefixtures("needs_core")

QUANTS = tuple(format for format in FORMATS if format not in ("fp32", "bf16"))
TOLERANCE = 2e-6  # measured: 4e-7
SUPER = ("q4_k", "q5_k", "q6_k", "q2_k")  # of rows of whole 256
each_isa = pytest.mark.parametrize("isa", ISAS)
each_format = pytest.mark.parametrize("format", FORMATS)


def widths_of(format: str) -> tuple[int, ...]:
    return (256, 768) if format in SUPER else (32, 64, 96, 256, 416)


def off(matrix: Matrix, found: F32, x: F64, allowed: F64 | None = None) -> float:
    """The largest error, relative to the sum of the sizes of the products that were added up.

    allowed: what each activation may be off by, which counts as no error.
    """
    weights = matrix.numbers()
    errors = np.abs(found - product(weights, x))
    if allowed is not None:
        errors = np.maximum(0, errors - product(np.abs(weights), allowed))
    return float((errors / (product(np.abs(weights), np.abs(x)) + 1e-30)).max())


@each_isa
@each_format
def test_products_equal_those_of_float64(format: str, isa: str) -> None:
    for columns, rows in zip(widths_of(format), itertools.cycle((23, 80, 1, 16))):
        matrix = packed(format, rows, columns, seed=columns)
        x = activations(11, columns, seed=rows)
        found = multiply([matrix], x, isa)
        assert off(matrix, found, as_multiplied(format, x, isa)) < TOLERANCE
        exact = x.astype(np.float64)
        assert off(matrix, found, exact, steps(format, x, isa)) < TOLERANCE


@each_isa
@pytest.mark.parametrize("kind", ["Q3_K", "F16"])
def test_types_that_take_another_s_form_multiply_as_well(kind: str, isa: str) -> None:
    matrix = pack(random_tensor(kind, (40, 256)), None, None, 1)
    x = activations(5, 256)
    assert off(matrix, multiply([matrix], x, isa), as_multiplied(matrix.format, x, isa)) < TOLERANCE


@each_isa
@each_format
def test_no_bit_depends_on_the_number_of_positions(format: str, isa: str) -> None:
    columns = widths_of(format)[-1]
    matrices = [packed(format, 39, columns)]
    x = activations(300, columns)
    whole = multiply(matrices, x, isa)
    for count in (*range(1, 41), 63, 64, 65, 128, 129, 257):
        start = 300 - count  # another place than in the whole
        assert same_bits(multiply(matrices, x[start:], isa), whole[start:]), count


@each_isa
@each_format
def test_no_bit_depends_on_the_place_of_a_position(format: str, isa: str) -> None:
    columns = widths_of(format)[-1]
    matrices = [packed(format, 39, columns)]
    x = activations(25, columns)
    order = np.random.default_rng(2).permutation(25)
    assert same_bits(multiply(matrices, x[order], isa), multiply(matrices, x, isa)[order])
    alike = multiply(matrices, np.repeat(x[:1], 25, axis=0), isa)
    assert same_bits(alike, np.repeat(alike[:1], 25, axis=0))


@each_isa
@each_format
def test_no_bit_depends_on_the_threads(format: str, isa: str) -> None:
    columns = widths_of(format)[-1]
    matrices = [packed(format, 333, columns), packed("q8_s", 70, columns)]
    for count in (1, 5, 30):
        x = activations(count, columns)
        one = multiply(matrices, x, isa)
        for threads in (2, 3):
            assert same_bits(multiply(matrices, x, isa, threads=threads), one)


@each_format
def test_instruction_sets_agree_to_the_bit(format: str) -> None:
    """But for products of bf16 pairs, which round in their own way."""
    sets = [isa for isa in ISAS if format != "bf16" or isa != "avx512-bf16"]
    for columns in widths_of(format):
        matrix = pack(any_blocks(TYPE_OF[format], 39, columns, seed=columns), None, None, 1)
        x = activations(13, columns) * np.float32(1e-3)
        first, *others = [multiply([matrix], x, isa) for isa in sets]
        assert all(same_bits(other, first) for other in others)


@each_isa
def test_parts_of_several_formats_lie_behind_each_other(isa: str) -> None:
    """Rows of a part that are no multiple of 16 included; a bias goes over all of them."""
    matrices = [packed("q4_m", 23, 256), packed("q6_k", 16, 256), packed("bf16", 5, 256),
                packed("fp32", 33, 256)]  # fmt: skip
    bias = torch.from_numpy(np.random.default_rng(3).normal(0, 1, 77).astype(np.float32))
    x = activations(9, 256)
    alone = np.concatenate([multiply([each], x, isa) for each in matrices], axis=1)
    assert same_bits(multiply(matrices, x, isa), alone)
    assert same_bits(multiply(matrices, x, isa, bias=bias), alone + bias.numpy())
    layer = CoreLinear(matrices, isa)
    assert same_bits(layer(torch.from_numpy(x)).numpy(), alone)
    assert layer.format == "q4_m+q6_k+bf16+fp32"
    assert layer.weight().shape == (77, 256)


@each_isa
@pytest.mark.parametrize("rows", range(1, 2 * LANES + 1))
def test_nothing_is_written_behind_the_outputs(rows: int, isa: str) -> None:
    x = activations(9, 32)
    for count in (1, 9):
        out = shifted(np.full((count, rows), np.nan, np.float32), 0)
        behind = np.frombuffer(out.base, np.uint8)  # the block around it
        before = behind.copy()
        multiply([packed("q4_s", rows, 32)], x[:count], isa, out=out)
        start = out.ctypes.data - behind.ctypes.data
        inside = slice(start, start + out.nbytes)
        assert np.isfinite(out).all()
        before[inside] = behind[inside]
        assert np.array_equal(behind, before)


@each_isa
@each_format
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_position_that_is_no_number_stays_so_and_harms_no_other(
    format: str, isa: str, bad: float
) -> None:
    columns = widths_of(format)[-1]
    matrix = packed(format, 39, columns)
    x = activations(19, columns)
    healthy = multiply([matrix], x, isa)
    for place, column in ((0, 0), (7, 31), (8, columns - 1), (18, 40)):
        broken = x.copy()
        broken[place, column] = bad
        found = multiply([matrix], broken, isa)
        touched = matrix.numbers()[:, column] != 0 if format in ("fp32", "bf16") else slice(None)
        assert not np.isfinite(found[place][touched]).any()
        others = np.arange(19) != place
        assert same_bits(found[others], healthy[others])


@each_format
@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-39, 3e-38, 1e-36, 1e-30, 1e30])
def test_tiny_and_huge_activations_are_numbers_and_agree(format: str, scale: float) -> None:
    """Groups below 1e-36, where 127 / largest is no number, may count as nothing."""
    columns = widths_of(format)[-1]
    matrix = packed(format, 39, columns)
    x = np.clip(activations(5, columns), -9, 9) * np.float32(scale)
    for isa in ISAS:
        found = multiply([matrix], x, isa)
        assert np.isfinite(found).all()
        assert off(matrix, found, x.astype(np.float64), steps(format, x, isa)) < TOLERANCE
        if format != "bf16":
            assert same_bits(found, multiply([matrix], x, ISAS[-1]))


@each_isa
@each_format
def test_pointers_may_lie_at_any_number(format: str, isa: str) -> None:
    columns = widths_of(format)[0]
    matrix = packed(format, 23, columns)
    x = activations(9, columns)
    wanted = multiply([matrix], x, isa)
    for by in (4, 12, 20, 36):
        out = shifted(np.zeros_like(wanted), by + 8)
        assert same_bits(multiply([matrix], shifted(x, by), isa, out=out), wanted)


@each_isa
@pytest.mark.parametrize("format", QUANTS)
def test_extreme_quants_do_not_overflow(format: str, isa: str) -> None:
    """Every quant at its largest or smallest, and activations at 127 steps of either sign."""
    kind, columns = TYPE_OF[format], 256
    tensor = random_tensor(kind, (32, columns))
    blocks = tensor.data.reshape(32, -1, GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]).copy()
    blocks[:16], blocks[16:] = (0x80, 0x7F) if kind == "Q8_0" else (0, 0xFF)
    for place in HALVES[kind]:
        blocks[:, :, place : place + 2] = np.array([0.01], np.float16).view(np.uint8)
    matrix = pack(replace(tensor, data=blocks.reshape(-1)), None, None, 1)
    for sign in (-1, 1):
        x = np.full((9, columns), sign, np.float32)
        x[1::2, ::3] *= -1
        assert off(matrix, multiply([matrix], x, isa), x.astype(np.float64)) < TOLERANCE
