"""The bound of plain decoding: each step reads all weights, and K and V of the text so far.

Knows bytes; the bandwidth is measured by `specd/device/bandwidth.py` in the run that it is compared
with. Invariant: the bound of a file is that of its own packing, the same for every contender.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specd.model.arch import config_from_gguf
from specd.model.opening import open_model

_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
_KV_ITEM_BYTES = 2  # 16-bit K and V


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What one plain step reads."""

    weight_bytes: int
    kv_bytes_per_position: int

    def at(self, context: float) -> float:
        """Bytes of a step behind `context` positions."""
        return self.weight_bytes + self.kv_bytes_per_position * context

    def tokens_per_s(self, context: float, read_bytes_per_s: float) -> float:
        """Steps per second that this bandwidth allows."""
        return read_bytes_per_s / self.at(context)


def file_bytes(model: Path) -> StepBytes:
    """Of a model as its file packs it, with 16-bit K and V. Raises ModelFileError."""
    source = open_model(model)
    config = config_from_gguf(source.metadata)
    # Of embeddings a step reads a row; a tied head reads all of them.
    skipped = _EMBEDDINGS if _HEAD in source.tensors else ""
    weights = sum(one.data.nbytes for name, one in source.tensors.items() if name != skipped)
    return StepBytes(weights, config.num_layers * config.kv_width * _KV_ITEM_BYTES)


def mean_context(prompt_tokens: int, new_tokens: int) -> float:
    """Positions behind which the steps of an answer run, on average."""
    return prompt_tokens + new_tokens / 2


def document(
    told: dict[str, Any], packed: StepBytes, prompt_tokens: tuple[int, ...], new_tokens: int
) -> dict[str, Any]:
    """As JSON. told: what the worker `specd_runner` says of specd's own format."""
    own = StepBytes(told["weight_bytes"], told["kv_bytes_per_position"])
    rate = told["read_bytes_per_s"]
    return {
        "read_bytes_per_s": rate,
        "read_threads": told["read_threads"],
        "file": {"weight_bytes": packed.weight_bytes, "kv_bytes": packed.kv_bytes_per_position},
        "specd": {"weight_bytes": own.weight_bytes, "kv_bytes": own.kv_bytes_per_position},
        "bounds": [
            {
                "prompt_tokens": length,
                "file_tokens_per_s": packed.tokens_per_s(mean_context(length, new_tokens), rate),
                "specd_tokens_per_s": own.tokens_per_s(mean_context(length, new_tokens), rate),
            }
            for length in prompt_tokens
        ],
    }
