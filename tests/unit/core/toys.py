"""Toy models that show what a step of the core has to get right: families, windows, head shapes.

Each is the arguments of `build_toy_model`. Invariant: the core can run every one of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.toy_gguf import build_toy_model

VOCAB = 300  # no multiple of 16

Toy = dict[str, Any]


def _biases(layers: int = 2) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Of a toy Llama's four projections."""
    random = np.random.default_rng(5)
    sizes = {"q": 128, "k": 64, "v": 64, "output": 128}
    return {
        f"blk.{layer}.attn_{part}.bias": random.normal(0, 0.5, size).astype(np.float32)
        for layer in range(layers)
        for part, size in sizes.items()
    }


FAMILIES: dict[str, Toy] = {
    "llama": {},
    "untied": {"tied": False},
    "llama with biases": {"extra_tensors": _biases()},
    "scaled rope": {"settings": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}},
    "mistral": {"layers": 3, "settings": {"attention.sliding_window": 40}},
    "qwen2": {"architecture": "qwen2"},
    "qwen2 with windows": {
        "architecture": "qwen2",
        "layers": 3,
        "settings": {
            "attention.sliding_window": 150,
            "attention.sliding_window_pattern": [False, True, True],
        },
    },
    "qwen3": {"architecture": "qwen3", "hidden": 96},
    "gemma3": {
        "architecture": "gemma3",
        "layers": 7,
        "hidden": 96,
        "settings": {"attention.sliding_window": 32, "rope.freq_base_swa": 500.0},
    },
    "gemma3 with scales": {
        "architecture": "gemma3",
        "layers": 4,
        "settings": {
            "attention.sliding_window": 200,
            "attention.sliding_window_pattern": 3,
            "attention.scale": 24**-0.5,
        },
    },
}

# heads over KV heads of elements, groups of 1 to 20.
HEADS: dict[str, Toy] = {
    f"{heads} over {kv} of {dim}": {
        "heads": heads, "kv_heads": kv, "head_dim": dim, "hidden": 96, "ffn": 96,
    }
    for heads, kv, dim in (
        (4, 4, 16), (9, 3, 32), (7, 1, 64), (8, 1, 48), (9, 1, 32), (18, 2, 16), (20, 1, 80),
        (2, 2, 128), (2, 1, 256), (1, 1, 512),
    )
}  # fmt: skip

# Windows shorter and longer than a page, a chunk of 256 and the text.
WINDOWS: dict[str, Toy] = {
    f"window of {window}": {"settings": {"attention.sliding_window": window}, "layers": 1}
    for window in (1, 16, 31, 100, 256, 257, 400)
}


def build(folder: Path, toy: Toy, **more: Any) -> Path:
    """Write a toy model; returns its path."""
    path = folder / "toy.gguf"
    build_toy_model(path, **{"vocab": VOCAB, "context_length": 1024} | toy | more)
    return path
