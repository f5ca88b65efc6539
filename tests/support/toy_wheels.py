"""Toy models in wheels, and the command line with such models in its catalog.

`python -m tests.support.toy_wheels ARGUMENTS` is `specd ARGUMENTS` with the models of the file
that $TOY_CATALOG names: the catalog is code, so a process under test gets more of it this way.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from specd.cli.main import main
from specd.model.catalog import CATALOG, CatalogModel, HubFile, Part

MEMBER = "data/part.bin"
HUB_FILE = HubFile("toys/Toy-GGUF", "toy.gguf")


def wheel_name(package: str) -> str:
    return f"{package}-1.0-py3-none-any.whl"


def wheel(package: str, payload: bytes, member: str = MEMBER) -> bytes:
    """The bytes of a wheel that holds `payload`."""
    info = f"{package}-1.0.dist-info"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"{package}/{member}", payload)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


def package_of(place: int) -> str:
    """The package of a part; places count from 1."""
    return f"toypart{place}"


def split(content: bytes, num_parts: int) -> dict[str, bytes]:
    """Wheels by file name, one part of `content` in each."""
    size = -(-len(content) // num_parts)
    return {
        wheel_name(package_of(n + 1)): wheel(package_of(n + 1), content[n * size : (n + 1) * size])
        for n in range(num_parts)
    }


def toy_model(
    content: bytes, num_parts: int, *, sha256: str = "", num_bytes: int | None = None
) -> CatalogModel:
    """The catalog's entry for `content`, in `num_parts` wheels and on a hub."""
    packages = [package_of(n + 1) for n in range(num_parts)]
    return CatalogModel(
        name="toy",
        summary="a test",
        licence="none",
        num_bytes=len(content) if num_bytes is None else num_bytes,
        sha256=sha256 or hashlib.sha256(content).hexdigest(),
        parts=tuple(Part(f"{package}==1.0", f"{package}/{MEMBER}") for package in packages),
        hub=HUB_FILE,
        architecture="llama",
    )


def write_catalog(path: Path, models: Sequence[CatalogModel]) -> None:
    """Write what $TOY_CATALOG takes."""
    path.write_text(json.dumps([asdict(model) for model in models]))


def _read_catalog(path: Path) -> list[CatalogModel]:
    return [
        CatalogModel(
            **entry
            | {
                "parts": tuple(Part(**part) for part in entry["parts"]),
                "hub": entry["hub"] and HubFile(**entry["hub"]),
            }
        )
        for entry in json.loads(path.read_text())
    ]


if __name__ == "__main__":
    assert isinstance(CATALOG, dict)
    CATALOG.update({m.name: m for m in _read_catalog(Path(os.environ["TOY_CATALOG"]))})
    sys.exit(main())
