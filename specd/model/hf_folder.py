"""Opens a Hugging Face folder: config.json and safetensors, as one source with GGUF's names.

Knows how the parts of a folder make a model; settings are `hf_config.py`, names `hf_names.py`,
bytes `safetensors_files.py`. Knows nothing of tokenizers. Invariant: nothing of the text model is
left out, and what is left out is told.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from specd.errors import ModelFileError
from specd.model.gguf_file import TensorInfo
from specd.model.hf_config import read_config
from specd.model.hf_names import CONFIG, EMBEDDING, HEAD, INDEX, SINGLE, TEXT_FILES, map_names
from specd.model.safetensors_files import Checkpoint, open_checkpoint, read_json
from specd.model.source import ModelSource

_log = logging.getLogger("specd.model")


def open_folder(path: Path) -> ModelSource:
    """Map a folder's tensors and read its settings; reads only headers.

    Raises: ModelFileError where the folder is incomplete, malformed or not supported.
    """
    try:
        return _open(path)
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error


def _open(path: Path) -> ModelSource:
    if not (path / CONFIG).is_file():
        raise ModelFileError(_no_config(path))
    config = read_config(read_json(path / CONFIG), path.resolve().name)
    checkpoint = open_checkpoint(path)
    names = map_names(checkpoint.places, config)
    tensors = {known: checkpoint.tensor(name, known) for known, name in names.stored.items()}
    notes = []
    if names.num_vision:
        notes.append(f"{names.num_vision} tensors for images are left out: specd serves text")
    if config.is_tied:
        notes += _tie(tensors)
    for note in notes:
        _log.info("%s: %s", path, note)
    return ModelSource(
        path=path,
        metadata=config.metadata,
        tensors=tensors,
        interleaved_rope=False,
        norms_lack_offset=config.family.architecture == "gemma3",
        files=_files(path, checkpoint),
        notes=tuple(notes),
    )


def _no_config(path: Path) -> str:
    if files := sorted(file.name for file in path.glob("*.gguf")):
        return f"it has no {CONFIG}; to serve a GGUF file of it, name the file: {files[0]}"
    return f"it has no {CONFIG}, so it is no model folder"


def _tie(tensors: dict[str, TensorInfo]) -> list[str]:
    """As transformers does: one of the two stands for both, unless both are there and differ."""
    embedding, head = tensors.get(EMBEDDING), tensors.pop(HEAD, None)
    if head is None:
        return []
    if embedding is None:
        tensors[EMBEDDING] = TensorInfo(EMBEDDING, head.type_name, head.shape, head.data)
        return []
    is_like = (embedding.type_name, embedding.shape) == (head.type_name, head.shape)
    if is_like and np.array_equal(embedding.data, head.data):
        return []
    tensors[HEAD] = head
    return [
        "config.json ties lm_head to the embedding, and both are there and differ; both are used"
    ]


def _files(path: Path, checkpoint: Checkpoint) -> tuple[Path, ...]:
    """Settings first, then what tells of text, then the tensors; each in a fixed order."""
    index = [] if checkpoint.files == (path / SINGLE,) else [INDEX]
    small = (path / name for name in (CONFIG, *index, *TEXT_FILES))
    return (*(file for file in small if file.is_file()), *checkpoint.files)
