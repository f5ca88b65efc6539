"""Paged attention of one signature: (fused heads, pages, layout) -> outputs.

Knows torch's scaled-dot-product attention and how heads fold; which positions see which KV is
`device/layout.py`'s decision. Query heads that share a KV head are folded into the query axis, so
that K and V are read once per group (half the time of the unfolded call at one position).
Invariant: masked K and V values are finite (zero page, zeroed pages, scratch page never read),
since a NaN behind a mask would still turn the output to NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """The tensors of one `AttentionGroup`.

    query_index, table: as there, on the device. mask: [segments, 1, width * group, kv_length],
    0 where a query sees a position and -inf where it does not.
    """

    num_segments: int
    kv_length: int
    query_index: Tensor
    table: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """The tensors of one `AttentionLayout`."""

    groups: tuple[DeviceGroup, ...]
    output_index: Tensor


def causal_mask(limit: Tensor, kv_length: int, dtype: torch.dtype, window: int = 0) -> Tensor:
    """limit [segments, queries] -> additive mask [segments, 1, queries, kv_length].

    A query sees `limit` and what is before it, with a window so many in all.
    """
    place, last = torch.arange(kv_length, device=limit.device), limit[:, None, :, None]
    hidden = place > last
    if window:
        hidden |= place <= last - window
    return torch.zeros(hidden.shape, dtype=dtype, device=limit.device).masked_fill_(
        hidden, float("-inf")
    )


def attend(fused: Tensor, cache: Tensor, layout: DeviceLayout, scale: float) -> Tensor:
    """Attend over one layer.

    Args:
        fused: [positions, fused_heads, head_dim], queries first; the rest is not read.
        cache: [pages, page_size, 2, kv_heads, head_dim], this step's K and V already in it.
        scale: what scores are multiplied by.

    Returns:
        [positions, query_heads * head_dim].
    """
    num_positions, _, head_dim = fused.shape
    queries = fused.view(-1, head_dim)
    outputs = [_attend_group(queries, cache, group, scale) for group in layout.groups]
    return _join(outputs).index_select(0, layout.output_index).view(num_positions, -1)


def _join(outputs: Sequence[Tensor]) -> Tensor:
    return outputs[0] if len(outputs) == 1 else torch.cat(list(outputs))


def _attend_group(queries: Tensor, cache: Tensor, group: DeviceGroup, scale: float) -> Tensor:
    """Returns [segments * width * group * kv_heads, head_dim]."""
    kv_heads, head_dim = cache.shape[-2:]
    query = queries.index_select(0, group.query_index)
    query = query.view(group.num_segments, kv_heads, -1, head_dim)
    gathered = cache.index_select(0, group.table)
    gathered = gathered.view(group.num_segments, group.kv_length, 2, kv_heads, head_dim)
    key, value = gathered[:, :, 0].transpose(1, 2), gathered[:, :, 1].transpose(1, 2)
    if group.num_segments * kv_heads == 1:
        # A lone head would run on all threads, which changes its bits: it gets a twin.
        query, key, value = (each.expand(2, -1, -1, -1) for each in (query, key, value))
    output = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=group.mask, scale=scale
    )
    return output[: group.num_segments].transpose(1, 2).reshape(-1, head_dim)
