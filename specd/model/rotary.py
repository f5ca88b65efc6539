"""Rotary positions: frequencies, and the tables of angles that a step looks positions up in.

Knows `Rope` and the divisors that a file may hold; angles are computed in float64. Invariant:
tables are for halves, elements i and i + dim/2 of a head, whatever order a file stores.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specd.model.arch import Rope


def rope_frequencies(
    ropes: Sequence[Rope], head_dim: int, file_divisors: Tensor | None = None
) -> Tensor:
    """Radians per position, fp64 [ropes, head_dim / 2]. file_divisors: [head_dim / 2], of all."""
    exponents = torch.arange(head_dim // 2, dtype=torch.float64) * 2 / head_dim
    found = []
    for rope in ropes:
        frequency = 1.0 / rope.base**exponents
        if rope.divisors:
            frequency = frequency / torch.tensor(rope.divisors, dtype=torch.float64)
        found.append(frequency if file_divisors is None else frequency / file_divisors.double())
    return torch.stack(found)


def rotary_tables(
    frequency: Tensor, context_length: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and signed sin of one rope, [context, 1, head_dim]. frequency: fp64 [head_dim / 2]."""
    angle = torch.arange(context_length, dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    return torch.cat([cos, cos], -1)[:, None], torch.cat([-sin, sin], -1)[:, None]
