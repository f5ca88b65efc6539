"""Linear layers: a row of the result depends on its own row alone, and is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from specd.model.blocks import FourBit
from specd.model.linear import (
    INT4_TILE,
    Bf16Linear,
    Fp32Linear,
    Int4Linear,
    Linear,
    SplitLinear,
    int4_weight,
)
from tests.unit.device.texts import torch_threads

COUNTS = (*range(1, 36), 47, 64, 65, 100, 127, 128, 129)
# out x in; sizes of real models and awkward ones
SHAPES = [(64, 64), (48, 32), (960, 576), (304, 96), (32, 352)]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def random_weight(shape: tuple[int, int], seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.mul(shape[1] ** -0.5)


def random_blocks(shape: tuple[int, int]) -> FourBit:
    random = np.random.default_rng(0)
    quants = random.integers(0, 16, shape, np.uint8)
    size = (shape[0], shape[1] // 32)
    scale = random.uniform(0.01, 0.02, size).astype(np.float16).astype(np.float32)
    minimum = random.uniform(-0.2, -0.1, size).astype(np.float16).astype(np.float32)
    return FourBit(quants, scale, minimum)


def int4_linear(blocks: FourBit) -> Int4Linear:
    num_rows, columns = blocks.quants.shape
    return Int4Linear((num_rows, columns), [blocks])


def split_linear(shape: tuple[int, int]) -> SplitLinear:
    """4-bit rows above bf16 rows, as in files that keep some tensors at more bits."""
    below = Bf16Linear(random_weight((16, shape[1])).bfloat16(), strict=True)
    return SplitLinear([int4_linear(random_blocks((shape[0] - 16, shape[1]))), below])


MAKERS: dict[str, Callable[[tuple[int, int]], Linear]] = {
    "fp32": lambda shape: Fp32Linear(random_weight(shape), strict=True),
    "bf16": lambda shape: Bf16Linear(random_weight(shape).bfloat16(), strict=True),
    "int4": lambda shape: int4_linear(random_blocks(shape)),
    "int4+bf16": split_linear,
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_a_row_does_not_depend_on_the_number_of_rows(name: str, shape: tuple[int, int]) -> None:
    linear = MAKERS[name](shape)
    assert linear.format == name
    x = random_weight((max(COUNTS), shape[1]), seed=1) * 4
    x = x if name == "fp32" else x.bfloat16()
    whole = linear(x)
    for count in COUNTS:
        for start in (0, x.shape[0] - count):
            found = linear(x[start : start + count])
            assert found.shape == (count, shape[0])
            assert torch.equal(found, whole[start : start + count]), count


def test_a_long_row_in_bf16_does_not_depend_on_the_number_of_rows() -> None:
    """Here a plain bf16 product of one row differs from one of two (measured: 4,864 columns)."""
    linear = Bf16Linear(random_weight((896, 4864)).bfloat16(), strict=True)
    x = random_weight((9, 4864), seed=1).bfloat16() * 70
    whole = linear(x)
    assert all(torch.equal(linear(x[:count]), whole[:count]) for count in range(1, 9))
    relaxed = Bf16Linear(random_weight((896, 4864)).bfloat16(), strict=False)
    assert torch.equal(relaxed(x), whole)


@pytest.mark.parametrize("name", MAKERS)
def test_a_row_that_is_not_finite_stays_alone(name: str) -> None:
    linear = MAKERS[name]((64, 64))
    x = random_weight((6, 64), seed=1)
    x = x if name == "fp32" else x.bfloat16()
    wanted = linear(x)
    x[2], x[4, 3] = float("nan"), float("inf")
    found = linear(x)
    healthy = [0, 1, 3, 5]
    assert torch.equal(found[healthy], wanted[healthy])
    assert torch.isnan(found[2]).all() and not torch.isfinite(found[4]).any()


def test_fp32_multiplies_by_its_weight() -> None:
    weight, x = random_weight((48, 32)), random_weight((5, 32), seed=1)
    found = Fp32Linear(weight, strict=True)(x)
    assert torch.allclose(found.double(), x.double() @ weight.double().T, atol=1e-6)


def test_bf16_multiplies_by_its_weight() -> None:
    weight, x = random_weight((48, 32)).bfloat16(), random_weight((5, 32), seed=1).bfloat16()
    found = Bf16Linear(weight, strict=True)(x)
    assert torch.allclose(found.double(), x.double() @ weight.double().T, rtol=2**-8, atol=1e-3)


def test_int4_multiplies_by_scale_times_quant_plus_minimum() -> None:
    blocks = random_blocks((48, 96))
    scale, minimum = (
        torch.from_numpy(np.repeat(each, 32, 1)) for each in (blocks.scale, blocks.minimum)
    )
    weight = (torch.from_numpy(blocks.quants).double() * scale + minimum).double()
    identity = torch.eye(96).bfloat16()
    found = int4_linear(blocks)(identity).double().T
    # Scale and zero are rounded to bf16, the result too.
    assert float((found - weight).abs().max()) < 3 * 2**-9 * float((16 * scale).max())


def test_chunks_of_int4_rows_make_the_layer_of_all_rows() -> None:
    blocks = random_blocks((304, 96))
    places = [slice(start, start + INT4_TILE) for start in range(0, 304, INT4_TILE)]
    chunks = [FourBit(blocks.quants[at], blocks.scale[at], blocks.minimum[at]) for at in places]
    x = random_weight((5, 96), seed=1).bfloat16()
    assert torch.equal(Int4Linear((304, 96), chunks)(x), int4_linear(blocks)(x))


def test_the_parts_of_a_split_layer_keep_their_own_arithmetic() -> None:
    split = split_linear((64, 96))
    x = random_weight((5, 96), seed=1).bfloat16()
    above, below = split.parts
    assert torch.equal(split(x), torch.cat([above(x), below(x)], 1))
    assert split.bytes == above.bytes + below.bytes


def test_int4_multiplies_by_what_it_says() -> None:
    blocks = random_blocks((64, 96))
    made = int4_linear(blocks)(torch.eye(96).bfloat16()).T
    assert torch.equal(made, int4_weight(blocks).bfloat16())


def test_bytes_say_what_a_step_reads() -> None:
    sizes = {name: maker((64, 64)).bytes for name, maker in MAKERS.items()}
    assert sizes == {
        "fp32": 64 * 64 * 4,
        "bf16": 64 * 64 * 2,
        "int4": 64 * 64 // 2 + 64 * 2 * 2 * 2,
        "int4+bf16": 48 * 64 // 2 + 48 * 2 * 2 * 2 + 16 * 64 * 2,
    }


@pytest.mark.parametrize("name", ["fp32"])
def test_without_the_rules_a_row_depends_on_the_number_of_rows(name: str) -> None:
    linear = Fp32Linear(random_weight((960, 576)), strict=False)
    x = random_weight((33, 576), seed=1)
    whole = linear(x)
    assert any(not torch.equal(linear(x[:count]), whole[:count]) for count in range(1, 10))
