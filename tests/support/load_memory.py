"""Loads a model's weights in a process of its own and says how much memory that took.

    python -m tests.support.load_memory PATH WEIGHTS

Prints one JSON document: `held`, bytes that the weights take, and `peak`, the most that loading
had resident above what the process had before, mapped pages of the file included.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from specd.model.arch import config_from_gguf
from specd.model.embedding import DenseEmbedding
from specd.model.linear import Bf16Linear, Fp32Linear
from specd.model.opening import open_model
from specd.model.weights import ModelWeights, load_weights

_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"


def main() -> None:
    """Load, and print."""
    path, weights = sys.argv[1:]
    torch.set_num_threads(1)
    source = open_model(Path(path))
    config = config_from_gguf(source.metadata)
    (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
    before = _memory("VmRSS")
    loaded = load_weights(source, config, weights, strict=True)  # type: ignore[arg-type]
    found = {"held": _held(loaded), "peak": _memory("VmHWM") - before}
    sys.stdout.write(f"{json.dumps(found)}\n")


def _memory(key: str) -> int:
    """Bytes."""
    lines = (_PROCESS / "status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def _held(loaded: ModelWeights) -> int:
    """Bytes of all weights; a head that is the embedding counts once."""
    vectors = [vector for layer in loaded.layers for vector in layer.vectors()]
    held = sum(linear.bytes for linear in loaded.linears()) + sum(one.nbytes for one in vectors)
    embedding, head = loaded.embedding, loaded.head
    is_shared = (
        isinstance(embedding, DenseEmbedding)
        and isinstance(head, Fp32Linear | Bf16Linear)
        and head.weight() is embedding.table
    )
    return held + (0 if is_shared else embedding.bytes)


if __name__ == "__main__":
    main()
