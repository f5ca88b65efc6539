"""The whole way from a file to a warm runner: whatever the bytes are, it ends well or is refused.

Builds on `boot`, as the daemon does; a boot of this toy takes 25 ms.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.toy_gguf import LinearType, build_toy_model
from specd.device.assembly import DeviceSettings
from specd.device.boot import Booted, boot
from specd.errors import ModelFileError, StartFailed
from specd.model.formats import WeightFormat
from tests.support.fuzzing import fuzzed
from tests.unit.device.texts import torch_threads

MAX_VALUE_BYTES = 400  # of entries that the fuzz aims at; the vocabulary's arrays are longer
NUMBERS = (0, 1, 2, 3, 7, 31, 33, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**64 - 1)
FLOATS = (0.0, -1.0, 1e-45, 3e38, float("nan"), float("inf"))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@dataclass(frozen=True)
class Whole:
    """A sound file. spans: where its short metadata entries and its tensor headers lie."""

    path: Path
    data: bytes
    spans: list[tuple[int, int]]
    header_size: int


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    path = tmp_path_factory.mktemp("loading") / "whole.gguf"
    build_toy_model(path, layers=1, heads=2, kv_heads=1, ffn=64, context_length=64,
                    linear_type="Q4_1", embed_type="Q8_0")  # fmt: skip
    reader = GGUFReader(path)
    fields = [*reader.fields.values(), *(tensor.field for tensor in reader.tensors)]
    sizes = [(field.offset, sum(part.nbytes for part in field.parts)) for field in fields]
    spans = [(start, size) for start, size in sizes if size < MAX_VALUE_BYTES]
    return Whole(path, path.read_bytes(), spans, reader.data_offset)


def load(path: Path, weights: WeightFormat = "auto") -> Booted:
    return boot(DeviceSettings(path, weights, "strict", "torch", 1 << 22, 2, 16, 1))


def test_the_whole_file_loads(whole: Whole) -> None:
    assert load(whole.path).config.num_layers == 1


def test_a_file_that_is_cut_anywhere_is_refused(whole: Whole, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    cuts = {start + part for start, size in whole.spans for part in (0, 7, size - 1)}
    cuts |= set(range(0, len(whole.data), len(whole.data) // 50)) | {len(whole.data) - 1}
    for cut in sorted(cuts):
        path.write_bytes(whole.data[:cut])
        with pytest.raises(ModelFileError) as refused:
            load(path)
        assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "name", ["rope_factors_long.weight", "blk.0.ffn_up.bias", "blk.1.attn_q.weight"]
)
def test_a_tensor_that_would_have_to_be_ignored_is_refused_by_name(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "extra.gguf"
    build_toy_model(path, layers=1, extra_tensors={name: np.ones(32, np.float32)})
    with pytest.raises(ModelFileError, match=f"does not use: {name}"):
        load(path)


@pytest.mark.parametrize("weights", get_args(WeightFormat))
@pytest.mark.parametrize("linear_type", get_args(LinearType))
def test_every_choice_of_weights_starts_on_a_file_of_any_type(
    tmp_path: Path, linear_type: LinearType, weights: WeightFormat
) -> None:
    """i09: bf16 is no type of GGUF's quantised files, and is what they run in by default."""
    path = tmp_path / "toy.gguf"
    build_toy_model(path, layers=1, linear_type=linear_type, embed_type=linear_type)
    assert load(path, weights).invariance == "strict"


def test_choices_that_hold_other_numbers_have_other_fingerprints(tmp_path: Path) -> None:
    path = tmp_path / "toy.gguf"
    build_toy_model(path, layers=1, linear_type="F16", embed_type="F16")
    prints = {load(path, weights).fingerprint for weights in get_args(WeightFormat)}
    assert len(prints) == len(get_args(WeightFormat))


def test_a_block_type_that_is_not_supported_is_refused_by_tensor_and_type(
    whole: Whole, tmp_path: Path
) -> None:
    """i09: the refusal says what the file has, and what could be read."""
    path = tmp_path / "iq4.gguf"
    data = bytearray(whole.data)
    name = b"blk.0.ffn_up.weight"
    place = data.index(name) + len(name) + 4 + 2 * 8  # behind the name, its shape
    _write(data, place, struct.pack("<I", GGMLQuantizationType.IQ4_NL))
    path.write_bytes(data)
    with pytest.raises(
        ModelFileError, match=r"blk\.0\.ffn_up\.weight.*IQ4_NL.*F32, F16, BF16, Q4_0"
    ):
        load(path)


def test_broken_chat_templates_cost_chats_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "template.gguf"
    build_toy_model(path, layers=1, chat_template="{% break %}")
    assert not load(path).template.usable


def _write(data: bytearray, place: int, value: bytes) -> None:
    data[place : place + len(value)] = value[: len(data) - place]


@st.composite
def broken(draw: st.DrawFn, whole: Whole) -> bytes:
    """The file with one to three places of its header changed, or cut."""
    data = bytearray(whole.data)
    for _ in range(draw(st.integers(1, 3))):
        start, size = draw(st.sampled_from(whole.spans))
        place = min(start + draw(st.integers(0, size - 1)), len(data) - 1)
        match draw(st.sampled_from(["u32", "u64", "f32", "flip", "anywhere", "last", "cut"])):
            case "u32":
                number = draw(st.sampled_from(NUMBERS)) & (2**32 - 1)
                _write(data, place, struct.pack("<I", number))
            case "u64":
                _write(data, place, struct.pack("<Q", draw(st.sampled_from(NUMBERS))))
            case "f32":
                _write(data, place, struct.pack("<f", draw(st.sampled_from(FLOATS))))
            case "flip":
                data[place] ^= draw(st.integers(1, 255))
            case "anywhere":
                data[draw(st.integers(0, len(data) - 1)) % whole.header_size] = draw(
                    st.integers(0, 255)
                )
            case "last":
                _write(data, start + size - 1, bytes([draw(st.integers(0, 255))]))
            case "cut":
                del data[max(1, place) :]
    return bytes(data)


# Overlapping blocks read as numbers hold infinities; what becomes of those is for the step to say.
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@fuzzed(500)
@given(data=st.data())
def test_a_file_with_a_broken_header_loads_or_is_refused(
    whole: Whole, tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(data.draw(broken(whole)))
    try:
        booted = load(path)
    except StartFailed as refused:
        assert str(refused)
    else:
        assert booted.num_pages > 0
