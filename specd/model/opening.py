"""Opens a model by its path: a GGUF file, or a Hugging Face folder.

Knows which format a path is; each format is a module of its own. Invariant: the path is opened or
refused, never guessed at.
"""

from __future__ import annotations

from pathlib import Path

from specd.errors import ModelFileError
from specd.model.gguf_file import GGUFFile
from specd.model.hf_folder import open_folder
from specd.model.source import ModelSource

# Files of a folder that people name instead of the folder.
_PARTS = (".safetensors", ".json")


def open_model(path: Path) -> ModelSource:
    """Open a model.

    Raises:
        ModelFileError: it is of neither format, or malformed.
    """
    if path.is_dir():
        return open_folder(path)
    if path.suffix in _PARTS:
        raise ModelFileError(f"{path} is a part of a model; name its folder, {path.parent}")
    file = GGUFFile.open(path)
    return ModelSource(
        path=path,
        metadata=file.metadata,
        tensors=file.tensors,
        interleaved_rope=True,
        norms_lack_offset=False,
        files=(path,),
    )
