"""GGUF files: what is written is read back, and no bytes make the parser fail by accident."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.toy_gguf import build_toy_model, toy_vocabulary
from specd.errors import ModelFileError
from specd.model.gguf_file import GGUFFile


@pytest.fixture(scope="module")
def toy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    build_toy_model(path, linear_type="Q4_1", embed_type="Q8_0", layers=1)
    return path


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def tensor(name: str, dimensions: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return text(name) + shape + struct.pack("<IQ", type_id, offset)


def build(tensors: list[bytes], entries: list[bytes], tail: bytes = b"", version: int = 3) -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    body = header + b"".join(entries) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + tail


def entry(key: str, type_id: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", type_id) + payload


def array(type_id: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", type_id, count) + payload


GOOD_TENSOR = tensor("w", [32])
GOOD_DATA = bytes(128)


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[bytes], str]:
    """Opens a file of these bytes, expects a refusal, returns its sentence."""

    def open_it(data: bytes) -> str:
        path = tmp_path / "bad.gguf"
        path.write_bytes(data)
        with pytest.raises(ModelFileError) as refusal:
            GGUFFile.open(path)
        assert str(path) in str(refusal.value)
        return str(refusal.value)

    return open_it


def test_metadata_comes_back_as_plain_values(toy_path: Path) -> None:
    metadata = GGUFFile.open(toy_path).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == 1
    assert metadata["llama.rope.freq_base"] == 10000.0
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["tokenizer.ggml.tokens"] == toy_vocabulary().tokens


def test_every_tensor_equals_what_the_reference_reader_finds(toy_path: Path) -> None:
    opened = GGUFFile.open(toy_path)
    reference = GGUFReader(toy_path)
    assert list(opened.tensors) == [tensor.name for tensor in reference.tensors]
    for expected in reference.tensors:
        found = opened.tensors[expected.name]
        assert found.type_name == expected.tensor_type.name
        assert found.shape == tuple(reversed(expected.shape.tolist()))
        assert np.array_equal(found.data, expected.data.reshape(-1).view(np.uint8))


def test_shapes_are_row_major(toy_path: Path) -> None:
    opened = GGUFFile.open(toy_path)
    assert opened.tensors["blk.0.ffn_down.weight"].shape == (128, 256)
    raw = opened.tensors["blk.0.ffn_down.weight"].data
    rows = dequantize(raw.reshape(128, -1), GGMLQuantizationType.Q4_1)
    assert rows.shape == (128, 256)


def test_writing_to_a_view_leaves_the_file_alone(toy_path: Path) -> None:
    before = toy_path.read_bytes()
    GGUFFile.open(toy_path).tensors["output_norm.weight"].data[:] = 0
    assert toy_path.read_bytes() == before


def test_nested_arrays_and_every_number_type_are_read(tmp_path: Path) -> None:
    numbers = {0: ("B", 200), 1: ("b", -3), 2: ("H", 60000), 3: ("h", -300), 4: ("I", 1 << 31),
               5: ("i", -7), 6: ("f", 0.5), 7: ("?", True), 10: ("Q", 1 << 63), 11: ("q", -1),
               12: ("d", 0.1)}  # fmt: skip
    entries = [
        entry(f"n{type_id}", type_id, struct.pack("<" + code, value))
        for type_id, (code, value) in numbers.items()
    ]
    inner = array(5, 2, struct.pack("<2i", 1, 2))
    entries.append(entry("nested", 9, array(9, 2, inner + inner)))
    path = tmp_path / "numbers.gguf"
    path.write_bytes(build([], entries, version=2))
    metadata = GGUFFile.open(path).metadata
    assert {key: metadata[f"n{key}"] for key in numbers} == {k: v[1] for k, v in numbers.items()}
    assert metadata["nested"] == [[1, 2], [1, 2]]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"nowhere\.gguf: No such file"):
        GGUFFile.open(tmp_path / "nowhere.gguf")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="directory"):
        GGUFFile.open(tmp_path)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty or too short"),
        (b"GG", "empty or too short"),
        (b"PK\x03\x04" + bytes(40), "begins with"),
        (build([], [], version=1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648"),
        (build([], [])[:15], "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "claims 1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 63), "metadata entries, more than"),
        (build([], [struct.pack("<Q", 1 << 62) + bytes(64)]), "a metadata key .* needs 4611"),
        (build([], [entry("k", 8, struct.pack("<Q", 1 << 40))]), "truncated"),
        (build([], [entry("k", 13, bytes(8))]), "unknown value type 13"),
        (build([], [entry("k", 9, array(4, 1 << 61))]), "all arrays together"),
        (build([], [entry("k", 9, array(4, 1000))]), "truncated"),
        (build([], [entry("k", 9, array(8, 1000, text("a")))]), "truncated"),
        (build([], [entry("k", 9, array(99, 1))]), "unknown value type 99"),
        (build([], [entry("k", 9, array(9, 1, array(9, 1, array(9, 1))))]), "nested deeper"),
        (build([], [entry("k", 8, struct.pack("<Q", 1) + b"\xff")]), "not valid UTF-8"),
        (build([], [entry("k", 9, array(8, 1, struct.pack("<Q", 1) + b"\xff"))]), "element 0 of"),
        (build([], [entry("k", 0, b"\1"), entry("k", 0, b"\1")]), "'k' occurs twice"),
        (build([tensor("w", [])], [], GOOD_DATA), "has 0 dimensions"),
        (build([tensor("w", [1] * 5)], [], GOOD_DATA), "has 5 dimensions"),
        (build([tensor("w", [32, 0])], [], GOOD_DATA), "dimension of zero"),
        (build([tensor("w", [32], 999)], [], GOOD_DATA), "unknown type 999"),
        (build([tensor("w", [31], 2)], [], GOOD_DATA), "no whole blocks of 32"),
        (build([tensor("w", [1 << 63, 1 << 63])], [], GOOD_DATA), "may be truncated"),
        (build([tensor("w", [32], 0, 1 << 63)], [], GOOD_DATA), "may be truncated"),
        (build([tensor("w", [32], 0, 8)], [], GOOD_DATA), "no multiple of the alignment"),
        (build([GOOD_TENSOR, GOOD_TENSOR], [], GOOD_DATA), "'w' occurs twice"),
        (build([GOOD_TENSOR], [], GOOD_DATA[:-1]), "the file has"),
        (build([GOOD_TENSOR], [entry("general.alignment", 4, bytes(4))], GOOD_DATA), "alignment"),
        (
            build([GOOD_TENSOR], [entry("general.alignment", 8, text("x"))], GOOD_DATA),
            "not a power of two",
        ),
    ],
)
def test_a_malformed_file_is_refused_with_its_fault(
    refused: Callable[[bytes], str], data: bytes, problem: str
) -> None:
    assert re.search(problem, refused(data))


def test_the_good_parts_of_these_cases_open(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(
        build([GOOD_TENSOR], [entry("general.alignment", 4, b"\x20\0\0\0")], GOOD_DATA)
    )
    assert GGUFFile.open(path).tensors["w"].shape == (32,)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_flipped_and_cut_bytes_open_or_are_refused(
    toy_path: Path, tmp_path: Path, data: st.DataObject
) -> None:
    original = toy_path.read_bytes()
    # Half of the flips hit the counts and the first keys, half anything before the weights.
    reach = data.draw(st.sampled_from([200, 16_000]))
    flips = data.draw(st.lists(st.tuples(st.integers(0, reach), st.integers(1, 255)), max_size=4))
    length = data.draw(st.one_of(st.just(len(original)), st.integers(0, len(original))))
    broken = bytearray(original)
    for place, mask in flips:
        broken[place] ^= mask
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(broken[:length])
    try:
        opened = GGUFFile.open(path)
    except ModelFileError:
        return
    assert all(found.data.size for found in opened.tensors.values())
