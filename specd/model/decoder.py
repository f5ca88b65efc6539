"""The transformer decoder: hidden states of a step's positions, then logits of the wanted ones.

Knows the order of operations of Llama-like models; what a family lacks is None in its weights.
Weight formats, attention and layouts are its neighbours'. Between the kernels stand element-wise
operations of a single rounding (no fused multiply-add, which vector and scalar code round
differently) and the gates of `activation.py`, so a position's bits do not depend on where in a
tensor it lies.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from specd.model.activation import ACTIVATIONS
from specd.model.arch import ModelConfig
from specd.model.attention import DeviceLayout, attend
from specd.model.rotary import rotary_tables
from specd.model.weights import LayerWeights, ModelWeights


class Decoder:
    """A model that is ready to run. Holds no state between calls; the KV cache is passed in."""

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self.config = config
        self.weights = weights
        self._gate = ACTIVATIONS[config.family.activation]
        # As transformers does: the scale is rounded to the type of what it scales.
        self._scale = float(torch.tensor(config.embedding_scale, dtype=weights.dtype))
        self._tables = [
            rotary_tables(frequency, config.context_length, weights.dtype)
            for frequency in weights.rope_frequencies
        ]

    def cache_shape(self, num_pages: int, page_size: int) -> tuple[int, ...]:
        """Shape of the KV cache: [layer, page, token, K or V, kv_head, dim].

        Token before head, K beside V: a page is one contiguous read, and a position one write.
        """
        config = self.config
        return (config.num_layers, num_pages, page_size, 2, config.num_kv_heads, config.head_dim)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        kv_slots: Tensor,
        cache: Tensor,
        at: Mapping[int, DeviceLayout],
    ) -> Tensor:
        """Run all layers.

        Args:
            tokens, positions, kv_slots: int64 [positions].
            cache: as `cache_shape`; K and V of these positions are written to `kv_slots`.
            at: by the length of a window, one for each that the config's layers have.

        Returns:
            [positions, hidden], before the final norm.
        """
        config = self.config
        x = self.weights.embedding(tokens)
        if config.family.scaled_embedding:
            x.mul_(self._scale)
        turns = [
            (cos.index_select(0, positions), sin.index_select(0, positions))
            for cos, sin in self._tables
        ]
        for number, layer in enumerate(self.weights.layers):
            fused = self._project(layer, x, *turns[config.layer_ropes[number]])
            keys_values = fused[:, config.num_heads :].reshape(-1, config.kv_width)
            cache[number].view(-1, config.kv_width).index_copy_(0, kv_slots, keys_values)
            seen = attend(fused, cache[number], at[config.windows[number]], config.attention_scale)
            x = x + self._attention_output(layer, seen)
            x = x + self._feed_forward(layer, x)
        return x

    def logits(self, hidden: Tensor, wanted: Tensor) -> Tensor:
        """hidden [positions, hidden], wanted int64 [n] -> fp32 logits [n, vocab]."""
        x = self._norm(hidden.index_select(0, wanted), self.weights.final_norm)
        return self.weights.head(x).float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.config.norm_eps)

    def _project(self, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries, keys and values, rotated; [positions, fused_heads, head_dim]."""
        config = self.config
        flat = layer.qkv(self._norm(x, layer.attn_norm))
        if layer.qkv_bias is not None:
            flat = flat + layer.qkv_bias
        fused = flat.view(-1, config.fused_heads, config.head_dim)
        rotary = fused[:, : config.num_heads + config.num_kv_heads]  # all but the value heads
        if layer.q_norm is not None and layer.k_norm is not None:
            self._norm_heads(rotary[:, : config.num_heads], layer.q_norm)
            self._norm_heads(rotary[:, config.num_heads :], layer.k_norm)
        turned = torch.roll(rotary, config.head_dim // 2, -1).mul_(sin)
        rotary.mul_(cos).add_(turned)
        return fused

    def _norm_heads(self, heads: Tensor, weight: Tensor) -> None:
        """Norm each head on its own, in place."""
        # Rows of one matrix, as elsewhere: the norm of a row is known not to depend on others.
        heads.copy_(self._norm(heads.reshape(-1, heads.shape[-1]), weight).view(heads.shape))

    def _attention_output(self, layer: LayerWeights, seen: Tensor) -> Tensor:
        output = layer.attn_output(seen)
        if layer.attn_output_bias is not None:
            output = output + layer.attn_output_bias
        return self._post(output, layer.post_attn_norm)

    def _feed_forward(self, layer: LayerWeights, x: Tensor) -> Tensor:
        gate_up = layer.gate_up(self._norm(x, layer.ffn_norm))
        gate, up = gate_up[:, : self.config.ffn_size], gate_up[:, self.config.ffn_size :]
        return self._post(layer.ffn_down(self._gate(gate).mul_(up)), layer.post_ffn_norm)

    def _post(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else self._norm(x, weight)
