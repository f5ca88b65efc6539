"""A gate's bits do not depend on how many positions run beside it, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from specd.model.activation import ACTIVATIONS
from specd.model.arch import Activation
from tests.unit.device.texts import torch_threads

PLAIN: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}
WIDTHS = (129, 1003)  # vectors leave a rest in each


def gates(width: int, dtype: torch.dtype) -> Tensor:
    """The left half of a fused projection, as in a step: rows are apart from each other."""
    generator = torch.Generator().manual_seed(width)
    return torch.randn(260, 2 * width, generator=generator).to(dtype)[:, :width]


def differing(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """How many rows of batches of several sizes differ from the same row alone."""
    alone = torch.cat([function(x[row : row + 1].clone()) for row in range(x.shape[0])])
    return sum(
        int((function(x[:count]) != alone[:count]).any(1).sum())
        for count in (2, 17, 33, 35, 128, 130, 257, x.shape[0])
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_row_is_the_same_in_any_company(name: Activation, dtype: torch.dtype) -> None:
    with torch_threads(3):
        for width in WIDTHS:
            x = gates(width, dtype)
            assert differing(ACTIVATIONS[name], x) == 0
            assert torch.allclose(ACTIVATIONS[name](x), PLAIN[name](x), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_check_fails_for_torch_s_own_function(name: Activation) -> None:
    with torch_threads(3):
        assert sum(differing(PLAIN[name], gates(width, torch.float32)) for width in WIDTHS) > 0
