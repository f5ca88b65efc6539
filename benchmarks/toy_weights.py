"""The random weights of toy models: names and shapes of tensors, and how loud each is.

Knows which tensors a family has; files are `toy_gguf.py`'s. Invariant: equal shapes and seeds give
equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# Greedy output must wander. With plain gains a tied model predicts its own last token for ever
# (the embedding dominates the residual stream); attention that is sharp and loud makes the next
# token depend on the whole context instead.
QUERY_GAIN = 2.0
HEAD_NORM = 1.5  # where queries and keys have norms of their own
ATTENTION_GAIN = 16.0
FFN_GAIN = 8.0
# The logits' standard deviation: sampling at temperature 1 is neither greedy nor uniform.
LOGIT_STD = 3.0


@dataclass(frozen=True, slots=True)
class ToyShape:
    """The numbers of a toy model; `hidden` is heads * head_dim unless `own_hidden` says more."""

    vocab: int = 512
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 256
    context_length: int = 512
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5
    own_hidden: int = 0

    @property
    def hidden(self) -> int:
        return self.own_hidden or self.query

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(slots=True)
class ToyWeights:
    """Draws every tensor in file order from one generator."""

    shape: ToyShape
    seed: int
    tied: bool
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def _matrix(self, rows: int, columns: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
        std = gain / columns**0.5
        return self._normal((rows, columns), std)

    def _normal(
        self, size: tuple[int, ...], std: float, mean: float = 0.0
    ) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = self.random.normal(mean, std, size).astype(np.float32)
        return values

    def _norm(self, mean: float = 1.0) -> npt.NDArray[np.float32]:
        return self._normal((self.shape.hidden,), 0.1 * mean, mean)

    def embeddings(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        hidden, vocab = self.shape.hidden, self.shape.vocab
        yield "token_embd.weight", self._matrix(vocab, hidden, hidden**0.5)
        if not self.tied:
            yield "output.weight", self._matrix(vocab, hidden, hidden**0.5)

    def norms(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        for layer in range(self.shape.layers):
            yield f"blk.{layer}.attn_norm.weight", self._norm()
            yield f"blk.{layer}.ffn_norm.weight", self._norm()
        yield "output_norm.weight", self._norm(LOGIT_STD / self.shape.hidden**0.5)

    def linears(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        shape = self.shape
        hidden, kv = shape.hidden, shape.kv
        for layer in range(shape.layers):
            prefix = f"blk.{layer}."
            yield prefix + "attn_q.weight", self._matrix(shape.query, hidden, QUERY_GAIN)
            yield prefix + "attn_k.weight", self._matrix(kv, hidden, QUERY_GAIN)
            yield prefix + "attn_v.weight", self._matrix(kv, hidden)
            yield prefix + "attn_output.weight", self._matrix(hidden, shape.query, ATTENTION_GAIN)
            yield prefix + "ffn_gate.weight", self._matrix(shape.ffn, hidden)
            yield prefix + "ffn_up.weight", self._matrix(shape.ffn, hidden)
            yield prefix + "ffn_down.weight", self._matrix(hidden, shape.ffn, FFN_GAIN)

    def vectors(self, architecture: str) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """What a family has beside a Llama's tensors: biases, and norms of heads and of outputs."""
        shape = self.shape
        for layer in range(shape.layers):
            prefix = f"blk.{layer}."
            if architecture == "qwen2":
                yield prefix + "attn_q.bias", self._normal((shape.query,), 0.5)
                yield prefix + "attn_k.bias", self._normal((shape.kv,), 0.5)
                yield prefix + "attn_v.bias", self._normal((shape.kv,), 0.5)
            if architecture in {"qwen3", "gemma3"}:
                for part in ("q", "k"):
                    norm = self._normal((shape.head_dim,), 0.2, HEAD_NORM)
                    yield f"{prefix}attn_{part}_norm.weight", norm
            if architecture == "gemma3":
                # As loud as the embedding, which the family scales by the root of `hidden`.
                loud = shape.hidden**0.5
                yield prefix + "post_attention_norm.weight", self._norm(loud)
                yield prefix + "post_ffw_norm.weight", self._norm(loud)
