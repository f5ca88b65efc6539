"""A model on disk, whatever its format: metadata, tensors, and where formats differ.

Knows what a loader reads; `opening.py` makes one of a path. Metadata keys and
tensor names are those of GGUF in both. Invariant: a source's tensors are views of mapped files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specd.model.gguf_file import Metadata, TensorInfo


@dataclass(frozen=True, slots=True)
class ModelSource:
    """An opened model.

    interleaved_rope: query and key rows of Llama-like models lie so that rotary pairs are
    neighbours (2i, 2i+1), as in GGUF; else they are halves (i, i + dim/2).
    norms_lack_offset: the norm weights of families with an offset (Gemma) are stored without it.
    files: all files whose bytes decide the output, in a fixed order.
    notes: sentences for people on what of the model is not used, or not as it says.
    """

    path: Path
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    interleaved_rope: bool
    norms_lack_offset: bool
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()
