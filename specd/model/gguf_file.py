"""Opens GGUF files: metadata as plain values, tensors as views of the mapped file.

Knows the container format (versions 2 and 3, little-endian) and the block sizes of the tensor
types, nothing of architectures or of what a tensor means. The `gguf` package's own reader parses
arrays element by element (1.8 s for a vocabulary of 49,152), hence this one.

Invariant: every byte is checked before it is used; an opened file's tensors lie inside the file.
Whatever the bytes are, `GGUFFile.open` returns or raises `ModelFileError`.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from specd.errors import ModelFileError

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
# Smallest encodings: a key and a value need 8 + 4 + 1 bytes, a tensor 8 + 4 + 8 + 4 + 8.
MIN_ENTRY_BYTES = 13
MIN_TENSOR_BYTES = 32
# 16 times the largest vocabulary known; all arrays of a file together.
MAX_ARRAY_ELEMENTS = 1 << 24
MAX_ARRAY_DEPTH = 2

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# Value type ids of the format; 7 is bool, 8 string, 9 array.
_NUMBER_DTYPES = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4",
    6: "<f4", 7: "u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9

# Metadata values are plain: bool, int, float, str, or (nested) lists of these.
Metadata = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` is row-major, outermost first; `data` its raw bytes, flat uint8.

    `data` is a private copy-on-write view: writing to it never changes the file.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """An opened file. It stays mapped while any tensor's `data` is referenced."""

    path: Path
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]

    @staticmethod
    def open(path: str | os.PathLike[str]) -> GGUFFile:
        """Map and parse `path`; reads only the header.

        Raises: ModelFileError where the file is missing, malformed, truncated or of an unknown
        version or tensor type.
        """
        place = Path(path)
        reader = _Reader(place, _map(place))
        num_tensors, num_entries = _read_preamble(reader)
        metadata = _read_metadata(reader, num_entries)
        headers = _read_tensor_headers(reader, num_tensors)
        return GGUFFile(place, metadata, _place_tensors(reader, metadata, headers))


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < len(MAGIC):
                raise ModelFileError(f"{path} is not a GGUF file: it is empty or too short")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"cannot read model file {path}: {reason}") from error


class _Reader:
    """A cursor over the mapped bytes that never passes their end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.offset = 0
        self.array_elements = 0

    def error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.path} is not a usable GGUF file: {problem}")

    @property
    def remaining(self) -> int:
        return self.size - self.offset

    def take(self, length: int, what: str) -> int:
        """Advance by `length` and return the offset before it."""
        start = self.offset
        if length > self.size - start:
            raise self.error(
                f"it is truncated: {what} at byte {start} needs {length} bytes, "
                f"{self.size - start} are left"
            )
        self.offset = start + length
        return start

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.data, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.data, self.take(8, what))[0])

    def string(self, what: str) -> str:
        length = self.u64(f"the length of {what}")
        start = self.take(length, what)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} at byte {start} is not valid UTF-8") from error

    def numbers(self, type_id: int, count: int, what: str) -> list[object]:
        dtype = np.dtype(_NUMBER_DTYPES[type_id])
        start = self.take(count * dtype.itemsize, what)
        values = np.frombuffer(self.data, dtype, count, start)
        if type_id == _BOOL:
            values = values != 0
        plain: list[object] = values.tolist()
        return plain

    def strings(self, count: int, what: str) -> list[object]:
        """`count` strings in one tight loop: vocabularies have 10^5 of them."""
        data, size, unpack, offset = self.data, self.size, _U64.unpack_from, self.offset
        found: list[object] = []
        try:
            for _ in range(count):
                start = offset + 8
                offset = start + unpack(data, offset)[0]
                if offset > size:
                    raise self.error(
                        f"it is truncated: {what} reach beyond the end of the file "
                        f"(element {len(found)} of {count})"
                    )
                found.append(data[start:offset].decode())
        except struct.error as error:
            raise self.error(
                f"it is truncated: {what} end after {len(found)} of {count} elements"
            ) from error
        except UnicodeDecodeError as error:
            raise self.error(f"element {len(found)} of {what} is not valid UTF-8") from error
        self.offset = offset
        return found

    def value(self, type_id: int, what: str, depth: int = 0) -> object:
        if type_id == _STRING:
            return self.string(what)
        if type_id == _ARRAY:
            return self.array(what, depth + 1)
        if type_id in _NUMBER_DTYPES:
            return self.numbers(type_id, 1, what)[0]
        raise self.error(f"{what} has the unknown value type {type_id}")

    def array(self, what: str, depth: int) -> list[object]:
        if depth > MAX_ARRAY_DEPTH:
            raise self.error(f"{what} is nested deeper than {MAX_ARRAY_DEPTH} arrays")
        type_id = self.u32(f"the element type of {what}")
        count = self.u64(f"the length of {what}")
        self.array_elements += count
        if self.array_elements > MAX_ARRAY_ELEMENTS:
            raise self.error(
                f"{what} has {count} elements; all arrays together may have {MAX_ARRAY_ELEMENTS}"
            )
        if type_id == _STRING:
            return self.strings(count, what)
        if type_id in _NUMBER_DTYPES:
            return self.numbers(type_id, count, what)
        return [self.value(type_id, what, depth) for _ in range(count)]


def _read_preamble(reader: _Reader) -> tuple[int, int]:
    """Check magic and version; return the numbers of tensors and of metadata entries."""
    start = reader.take(len(MAGIC), "the magic")
    magic = reader.data[start : start + len(MAGIC)]
    if magic != MAGIC:
        raise reader.error(f"it begins with {magic!r} and not with {MAGIC!r}")
    version = reader.u32("the version")
    if version not in SUPPORTED_VERSIONS:
        raise reader.error(
            f"it has version {version}; specd reads little-endian versions "
            f"{' and '.join(map(str, SUPPORTED_VERSIONS))}"
        )
    num_tensors = _bounded_count(reader, "tensors", MIN_TENSOR_BYTES)
    return num_tensors, _bounded_count(reader, "metadata entries", MIN_ENTRY_BYTES)


def _bounded_count(reader: _Reader, what: str, min_bytes: int) -> int:
    count = reader.u64(f"the number of {what}")
    if count * min_bytes > reader.remaining:
        raise reader.error(f"it claims {count} {what}, more than its {reader.size} bytes can hold")
    return count


def _read_metadata(reader: _Reader, num_entries: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(num_entries):
        key = reader.string("a metadata key")
        if key in metadata:
            raise reader.error(f"the metadata key {key!r} occurs twice")
        type_id = reader.u32(f"the type of {key!r}")
        metadata[key] = reader.value(type_id, f"the value of {key!r}")
    return metadata


@dataclass(frozen=True, slots=True)
class _TensorHeader:
    name: str
    type_name: str
    shape: tuple[int, ...]
    num_bytes: int
    offset: int


def _read_tensor_headers(reader: _Reader, num_tensors: int) -> dict[str, _TensorHeader]:
    headers: dict[str, _TensorHeader] = {}
    for _ in range(num_tensors):
        header = _read_tensor_header(reader)
        if header.name in headers:
            raise reader.error(f"the tensor name {header.name!r} occurs twice")
        headers[header.name] = header
    return headers


def _read_tensor_header(reader: _Reader) -> _TensorHeader:
    name = reader.string("a tensor name")
    what = f"tensor {name!r}"
    num_dimensions = reader.u32(f"the dimension count of {what}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise reader.error(f"{what} has {num_dimensions} dimensions, not 1 to {MAX_DIMENSIONS}")
    dimensions = [reader.u64(f"a dimension of {what}") for _ in range(num_dimensions)]
    if 0 in dimensions:
        raise reader.error(f"{what} has a dimension of zero: {dimensions}")
    type_id = reader.u32(f"the type of {what}")
    type_name, num_bytes = _type_and_size(reader, what, type_id, dimensions)
    offset = reader.u64(f"the offset of {what}")
    return _TensorHeader(name, type_name, tuple(reversed(dimensions)), num_bytes, offset)


def _type_and_size(
    reader: _Reader, what: str, type_id: int, dimensions: list[int]
) -> tuple[str, int]:
    try:
        kind = GGMLQuantizationType(type_id)
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise reader.error(f"{what} has the unknown type {type_id}") from error
    if dimensions[0] % block_elements:
        raise reader.error(
            f"{what} has rows of {dimensions[0]} elements, which are no whole blocks "
            f"of {block_elements} ({kind.name})"
        )
    return kind.name, prod(dimensions) // block_elements * block_bytes


def _place_tensors(
    reader: _Reader, metadata: Metadata, headers: Mapping[str, _TensorHeader]
) -> dict[str, TensorInfo]:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise reader.error(f"general.alignment is {alignment!r}, not a power of two")
    base = -(-reader.offset // alignment) * alignment
    whole = np.frombuffer(reader.data, np.uint8)
    tensors: dict[str, TensorInfo] = {}
    for header in headers.values():
        if header.offset % alignment:
            raise reader.error(
                f"tensor {header.name!r} lies at offset {header.offset}, "
                f"which is no multiple of the alignment {alignment}"
            )
        start = base + header.offset
        end = start + header.num_bytes
        if end > reader.size:
            raise reader.error(
                f"tensor {header.name!r} needs bytes {start} to {end}, "
                f"the file has {reader.size}; it may be truncated"
            )
        tensors[header.name] = TensorInfo(
            header.name, header.type_name, header.shape, whole[start:end]
        )
    return tensors
