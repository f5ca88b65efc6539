"""The models that specd knows by name, and where their files lie.

Knows names, sources, checksums and the cache folder; downloads nothing (`model/pull.py` does).
A source is a list of wheels: networks that reach nothing else reach a Python package index. The
index is pip's own setting; no address of one stands here.

Invariant: the parts, joined in order, are the file whose size and sha256 stand beside them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specd.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class Part:
    """One wheel, and the member of it that holds this part of the file."""

    requirement: str
    member: str


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One named model. `num_bytes` and `sha256` are those of the whole GGUF file."""

    name: str
    summary: str
    licence: str
    num_bytes: int
    sha256: str
    parts: tuple[Part, ...]


def _numbered(package: str, version: str, module: str, count: int) -> tuple[Part, ...]:
    return tuple(
        Part(f"{package}-part{n}=={version}", f"{module}_part{n}/data/part{n}.bin")
        for n in range(1, count + 1)
    )
