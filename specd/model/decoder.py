"""The transformer decoder: hidden states of a step's positions, then logits of the wanted ones.

Knows the order of operations of a Llama-like model; weight formats, attention and layouts are its
neighbours'. Between the kernels stand element-wise operations of a single rounding (no fused
multiply-add, which vector and scalar code round differently) and `silu`, which runs in pieces, so a
position's bits do not depend on where in a tensor it lies.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specd.model.arch import ModelConfig
from specd.model.attention import DeviceLayout, attend
from specd.model.weights import LayerWeights, ModelWeights

# Above this many elements torch splits element-wise work between its threads, at any element, and
# the scalar code at the end of a piece rounds silu in another way than vector code.
_UNSPLIT = 32767


class Decoder:
    """A model that is ready to run. Holds no state between calls; the KV cache is passed in."""

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self.config = config
        self.weights = weights
        self._cos, self._sin = _rotary_tables(config, weights.dtype)

    def cache_shape(self, num_pages: int, page_size: int) -> tuple[int, ...]:
        """Shape of the KV cache: [layer, page, token, K or V, kv_head, dim].

        Token before head, K beside V: a page is one contiguous read, and a position one write.
        """
        config = self.config
        return (config.num_layers, num_pages, page_size, 2, config.num_kv_heads, config.head_dim)

    def hidden(
        self, tokens: Tensor, positions: Tensor, kv_slots: Tensor, cache: Tensor, at: DeviceLayout
    ) -> Tensor:
        """Run all layers.

        Args:
            tokens, positions, kv_slots: int64 [positions].
            cache: as `cache_shape`; K and V of these positions are written to `kv_slots`.

        Returns:
            [positions, hidden], before the final norm.
        """
        x = self.weights.embedding.index_select(0, tokens)
        cos = self._cos.index_select(0, positions)
        sin = self._sin.index_select(0, positions)
        for layer, layer_cache in zip(self.weights.layers, cache.unbind(0), strict=True):
            x = x + self._attention(
                layer, self._norm(x, layer.attn_norm), cos, sin, kv_slots, layer_cache, at
            )
            x = x + self._feed_forward(layer, self._norm(x, layer.ffn_norm))
        return x

    def logits(self, hidden: Tensor, wanted: Tensor) -> Tensor:
        """hidden [positions, hidden], wanted int64 [n] -> fp32 logits [n, vocab]."""
        x = self._norm(hidden.index_select(0, wanted), self.weights.final_norm)
        return self.weights.head(x).float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.config.norm_eps)

    def _attention(
        self,
        layer: LayerWeights,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_slots: Tensor,
        cache: Tensor,
        at: DeviceLayout,
    ) -> Tensor:
        config = self.config
        fused = layer.qkv(x).view(-1, config.fused_heads, config.head_dim)
        rotary = fused[:, : config.num_heads + config.num_kv_heads]  # all but the value heads
        turned = torch.roll(rotary, config.head_dim // 2, -1).mul_(sin)
        rotary.mul_(cos).add_(turned)
        keys_values = fused[:, config.num_heads :].reshape(-1, config.kv_width)
        cache.view(-1, config.kv_width).index_copy_(0, kv_slots, keys_values)
        return layer.attn_output(attend(fused, cache, at))

    def _feed_forward(self, layer: LayerWeights, x: Tensor) -> Tensor:
        gate_up = layer.gate_up(x)
        gate, up = gate_up[:, : self.config.ffn_size], gate_up[:, self.config.ffn_size :]
        return layer.ffn_down(silu(gate).mul_(up))


def silu(x: Tensor) -> Tensor:
    """x [positions, n], in pieces of whole rows that torch does not split between threads."""
    rows = max(1, _UNSPLIT // x.shape[1])
    if x.shape[0] <= rows:
        return functional.silu(x)
    starts = range(0, x.shape[0], rows)
    return torch.cat([functional.silu(x[start : start + rows]) for start in starts])


def _rotary_tables(config: ModelConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and signed sin, [context, 1, head_dim], for halves (i, i + dim/2)."""
    half = config.head_dim // 2
    exponents = torch.arange(half, dtype=torch.float64) * 2 / config.head_dim
    frequency = 1.0 / config.rope_base**exponents
    angle = torch.arange(config.context_length, dtype=torch.float64)[:, None] * frequency
    cos = torch.cat([angle.cos(), angle.cos()], -1)
    sin = torch.cat([-angle.sin(), angle.sin()], -1)
    return cos[:, None].to(dtype), sin[:, None].to(dtype)
