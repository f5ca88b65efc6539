"""A model in the core: its structures, threads and working memory, and the call that runs a step.

Knows `ModelWeights` and the core's interface; nothing of requests. Invariant: all memory that the
core points to is held here for as long as the core lives.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specd.core import library
from specd.core.layouts import PAGE, Layer, Linear, Model, Row, Step
from specd.core.linear import CoreEmbedding, CoreLinear, linear_of
from specd.core.packed import Matrix
from specd.errors import StartFailed
from specd.model.arch import ModelConfig
from specd.model.linear import Linear as AnyLinear
from specd.model.linear import SplitLinear
from specd.model.weights import LayerWeights, ModelWeights

Ints = npt.NDArray[np.int64]

_READS = 3
_ACTIVATIONS = ("silu", "gelu_tanh")  # in the order of core.h


@dataclass(frozen=True, slots=True)
class CoreRow:
    """`count` positions of one text from text position `first` on. pages: cover all of them."""

    first: int
    count: int
    pages: Sequence[int]


class CoreDecoder:
    """A model that is ready to run. Holds no state between calls; the KV cache is passed in."""

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, *, isa: str, max_positions: int
    ) -> None:
        """Raises: StartFailed where there is no memory for steps of `max_positions`."""
        self.config = config
        self.weights = weights
        self.isa = isa
        self.num_threads = torch.get_num_threads()
        self.max_positions = max_positions
        self._core = library.opened()
        self._model = self._structure()
        self.handle = self._core.specd_create(
            self._model, max_positions, self.num_threads, library.ISAS[isa]
        )
        if not self.handle:
            raise StartFailed(f"there is no memory for steps of {max_positions} positions")

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._core.specd_destroy(self.handle)

    def cache_shape(self, num_pages: int) -> tuple[int, ...]:
        """Shape of the KV cache: [layer, page, K or V, kv_head, dim * token].

        In K a head's tokens lie side by side for each element, in V the elements for each token:
        scores of 16 tokens and 16 elements of an output are vectors, and no sum crosses one.
        """
        config = self.config
        return (config.num_layers, num_pages, 2, config.num_kv_heads, config.head_dim * PAGE)

    def read_bytes_per_second(self) -> int:
        """Read all weights of a step, three times; the fastest. The bound of plain decoding."""
        parts = [part for linear in self.weights.linears() for part in _matrices(linear)]
        data = np.array([part.data.ctypes.data for part in parts], np.int64)
        sizes = np.array([part.data.nbytes for part in parts], np.int64)
        seconds = []
        for _ in range(_READS):
            start = time.perf_counter()
            self._core.specd_read(data.ctypes.data, sizes.ctypes.data, len(parts), self.num_threads)
            seconds.append(time.perf_counter() - start)
        return round(int(sizes.sum()) / min(seconds))

    def run(
        self, tokens: Ints, rows: Sequence[CoreRow], wanted: Ints, cache: Tensor, logits: Tensor
    ) -> None:
        """Run one step.

        Args:
            tokens: [positions], row after row.
            wanted: flat indices of the positions whose logits are written.
            cache: as `cache_shape`, in the weights' `kv_dtype`; keys and values of these positions
                are written.
            logits: fp32 [len(wanted), vocab], written.
        """
        assert 0 < len(tokens) <= self.max_positions
        assert 0 <= tokens.min() and tokens.max() < self.config.vocab_size
        tables = np.concatenate([np.asarray(row.pages, np.int64) for row in rows])
        described = np.empty((len(rows), 4), np.int64)
        offset, entry = 0, tables.ctypes.data
        for place, row in zip(described, rows, strict=True):
            place[:] = offset, row.count, row.first, entry
            offset += row.count
            entry += 8 * len(row.pages)
        assert offset == len(tokens)
        step = Step(
            len(tokens),
            len(rows),
            len(wanted),
            cache.shape[1],
            tokens.ctypes.data,
            ctypes.cast(described.ctypes.data, ctypes.POINTER(Row)),
            wanted.ctypes.data,
            logits.data_ptr(),
            cache.data_ptr(),
        )
        self._core.specd_run(self.handle, step)

    def _structure(self) -> Model:
        config, weights = self.config, self.weights
        frequencies = weights.rope_frequencies.contiguous()
        layers = (Layer * config.num_layers)(
            *(
                self._layer(layer, window, rope)
                for layer, window, rope in zip(
                    weights.layers, config.windows, config.layer_ropes, strict=True
                )
            )
        )
        embedding = weights.embedding
        assert isinstance(embedding, CoreEmbedding)
        self._held = (frequencies, layers)
        return Model(
            num_layers=config.num_layers,
            hidden=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            ffn=config.ffn_size,
            vocab=config.vocab_size,
            activation=_ACTIVATIONS.index(config.family.activation),
            kv_is_fp32=weights.kv_dtype == torch.float32,
            num_ropes=len(frequencies),
            norm_eps=config.norm_eps,
            embedding_scale=config.embedding_scale,
            attention_scale=config.attention_scale,
            inverse_frequencies=frequencies.data_ptr(),
            layers=layers,
            embedding=embedding.matrix.part(),
            final_norm=weights.final_norm.data_ptr(),
            head=_linear(weights.head, None),
        )

    def _layer(self, layer: LayerWeights, window: int, rope: int) -> Layer:
        gate, up = _matrices(layer.gate_up)
        return Layer(
            attn_norm=layer.attn_norm.data_ptr(),
            q_norm=_pointer(layer.q_norm),
            k_norm=_pointer(layer.k_norm),
            post_attn_norm=_pointer(layer.post_attn_norm),
            ffn_norm=layer.ffn_norm.data_ptr(),
            post_ffn_norm=_pointer(layer.post_ffn_norm),
            qkv=_linear(layer.qkv, layer.qkv_bias),
            attn_output=_linear(layer.attn_output, layer.attn_output_bias),
            gate=linear_of([gate], None),
            up=linear_of([up], None),
            down=_linear(layer.ffn_down, None),
            window=window,
            rope=rope,
        )


def _pointer(vector: Tensor | None) -> int | None:
    return None if vector is None else vector.data_ptr()


def _linear(linear: AnyLinear, bias: Tensor | None) -> Linear:
    return linear_of(_matrices(linear), bias)


def _matrices(linear: AnyLinear) -> list[Matrix]:
    parts = linear.parts if isinstance(linear, SplitLinear) else (linear,)
    found: list[Matrix] = []
    for part in parts:
        assert isinstance(part, CoreLinear)
        found.extend(part.matrices)
    return found
