"""The safetensors files of a folder: which they are, and their tensors as views of mapped bytes.

Knows the container through `safetensors`, which checks lengths, offsets and shapes of a whole file
when it opens it, and the index of a checkpoint in several files. Knows nothing of what a tensor
means. Invariant: every tensor lies in exactly one file, the one that the index says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open

from specd.errors import ModelFileError
from specd.model.gguf_file import TensorInfo
from specd.model.hf_names import INDEX, SINGLE

TYPES = ("F32", "F16", "BF16")
# The largest index known has 9 MB, the largest config 50 kB.
MAX_JSON_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Opened files in the order of their names. `places`: which of them holds a tensor."""

    files: tuple[Path, ...]
    places: Mapping[str, Any]

    def tensor(self, name: str, known_as: str) -> TensorInfo:
        """One tensor under another name. Raises: ModelFileError where its type is not read."""
        stored = self.places[name].get_slice(name)
        type_name = stored.get_dtype()
        if type_name not in TYPES:
            raise ModelFileError(
                f"the tensor {name} has the type {type_name}; specd reads {', '.join(TYPES)}"
            )
        data = _bytes(self.places[name].get_tensor(name))
        return TensorInfo(known_as, type_name, tuple(stored.get_shape()), data)


def _bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """A view. The mapping behind it is private: writing to it never changes the file."""
    view: npt.NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
    return view


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open `model.safetensors`, or else all files of the index, as transformers does.

    Raises: ModelFileError where a file is missing, damaged, or not what the index says.
    """
    if (folder / SINGLE).is_file():
        file = _open(folder / SINGLE)
        return Checkpoint((folder / SINGLE,), dict.fromkeys(file.keys(), file))
    if not (folder / INDEX).is_file():
        raise ModelFileError(_no_weights(folder))
    return _open_all(folder, _weight_map(folder / INDEX))


def _open(path: Path) -> Any:
    if not path.is_file():
        raise ModelFileError(f"the file {path.name} is missing")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        detail = str(error).removeprefix("Error while deserializing header: ")
        raise ModelFileError(
            f"{path.name} is truncated or damaged, or no safetensors file: {detail:.200}"
        ) from error


def _open_all(folder: Path, weight_map: Mapping[str, str]) -> Checkpoint:
    places: dict[str, Any] = {}
    names = sorted(set(weight_map.values()))
    for file_name in names:
        file = _open(folder / file_name)
        for name in file.keys():
            if weight_map.get(name) != file_name:
                said = weight_map.get(name, "nowhere")
                raise ModelFileError(f"{name} is in {file_name}; {INDEX} says {said}")
            places[name] = file
    if missing := sorted(weight_map.keys() - places.keys()):
        raise ModelFileError(
            f"{weight_map[missing[0]]} does not hold {missing[0]}, as {INDEX} says"
        )
    return Checkpoint(tuple(folder / name for name in names), places)


def _weight_map(path: Path) -> dict[str, str]:
    found = read_json(path).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ModelFileError(f"{path.name} has no weight_map with tensors")
    for name, file_name in found.items():
        if not isinstance(file_name, str) or not _is_plain(file_name):
            raise ModelFileError(
                f"{path.name} puts {name:.80} into {file_name!r:.80}, no file here"
            )
    return found


def _is_plain(file_name: str) -> bool:
    """A name in this folder: nothing leads out of it."""
    return file_name.endswith(".safetensors") and not set("/\\\0") & set(file_name)


def _no_weights(folder: Path) -> str:
    if any(folder.glob("pytorch_model*.bin")):
        return (
            "its weights are pickled (pytorch_model.bin), and unpickling runs whatever code the "
            "file holds; save it again with safetensors"
        )
    return f"it has neither {SINGLE} nor {INDEX}"


def read_json(path: Path) -> dict[str, object]:
    """A JSON object with no key twice. Raises: ModelFileError."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
        if len(text) > MAX_JSON_BYTES:
            raise ModelFileError(f"{path.name} has more than {MAX_JSON_BYTES} bytes")
        found = json.loads(text, object_pairs_hook=lambda pairs: _object(path, pairs))
    except OSError as error:
        raise ModelFileError(f"{path.name} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path.name} is not JSON: {error!s:.200}") from error
    if not isinstance(found, dict):
        raise ModelFileError(f"{path.name} is not a JSON object")
    return found


def _object(path: Path, pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ModelFileError(f"{path.name} has the key {key!r:.80} twice")
        found[key] = value
    return found
