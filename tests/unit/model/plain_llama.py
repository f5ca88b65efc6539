"""A Llama forward pass in plain float64 numpy, straight from a GGUF file: the decoder's oracle.

Written from the definition and in the file's own row order: rotary pairs are neighbours (2i, 2i+1).
Reads tensors with the `gguf` package; shares no code with specd.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

Array = npt.NDArray[np.float64]


class PlainLlama:
    """All weights as float64."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self._tensors = {
            tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors
        }
        self._fields = reader.fields

    def _field(self, key: str) -> Any:
        return self._fields[f"llama.{key}"].contents()

    def _weight(self, name: str) -> Array:
        return self._tensors[f"{name}.weight"]

    def _norm(self, x: Array, name: str) -> Array:
        eps = self._field("attention.layer_norm_rms_epsilon")
        scaled: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        return scaled * self._weight(name)

    def _rotate(self, x: Array) -> Array:
        """x [positions, heads, dim]: each neighbouring pair is turned by position * frequency."""
        positions, dim = len(x), x.shape[-1]
        base = self._field("rope.freq_base")
        angle = np.outer(np.arange(positions), base ** (-np.arange(0, dim, 2) / dim))[:, None]
        turned = np.empty_like(x)
        turned[..., 0::2] = x[..., 0::2] * np.cos(angle) - x[..., 1::2] * np.sin(angle)
        turned[..., 1::2] = x[..., 0::2] * np.sin(angle) + x[..., 1::2] * np.cos(angle)
        return turned

    def _attention(self, x: Array, layer: str) -> Array:
        heads, kv_heads = (
            self._field("attention.head_count"),
            self._field("attention.head_count_kv"),
        )
        query, key, value = (
            (x @ self._weight(f"{layer}.attn_{part}").T).reshape(len(x), count, -1)
            for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        query, key = self._rotate(query), self._rotate(key)
        outputs = []
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = query[:, head] @ key[:, shared].T / np.sqrt(query.shape[-1])
            scores[np.triu_indices(len(x), 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            outputs.append(weights / weights.sum(-1, keepdims=True) @ value[:, shared])
        return np.concatenate(outputs, -1) @ self._weight(f"{layer}.attn_output").T

    def _feed_forward(self, x: Array, layer: str) -> Array:
        gate = x @ self._weight(f"{layer}.ffn_gate").T
        up = x @ self._weight(f"{layer}.ffn_up").T
        inner: Array = gate / (1 + np.exp(-gate)) * up
        return inner @ self._weight(f"{layer}.ffn_down").T

    def logits(self, ids: Sequence[int]) -> Array:
        """[positions, vocab]."""
        x = self._weight("token_embd")[list(ids)]
        for number in range(self._field("block_count")):
            layer = f"blk.{number}"
            x = x + self._attention(self._norm(x, f"{layer}.attn_norm"), layer)
            x = x + self._feed_forward(self._norm(x, f"{layer}.ffn_norm"), layer)
        tied = "output.weight" not in self._tensors
        head = self._weight("token_embd" if tied else "output")
        return self._norm(x, "output_norm") @ head.T
