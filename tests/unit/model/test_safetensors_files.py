"""Files of a folder that are damaged, missing or of another kind are refused by name, soon."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.toy_gguf import build_toy_model
from specd.errors import ModelFileError
from specd.model.arch import config_from_gguf
from specd.model.opening import open_model
from tests.support.toy_folder import edit_header, twin_folder

Config = dict[str, Any]


def build(root: Path, shards: int) -> Path:
    vocabulary = build_toy_model(root / "toy.gguf")
    twin_folder(root / "toy.gguf", root / "folder", vocabulary, shards=shards)
    return root / "folder"


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return build(tmp_path, 1)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return build(tmp_path, 3)


def refusal(folder: Path) -> str:
    """The one sentence with which a folder is refused, soon."""
    began = time.process_time()
    with pytest.raises(ModelFileError) as caught:
        config_from_gguf(open_model(folder).metadata)
    assert time.process_time() - began < 2
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500
    return message


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I8", "U8"])
def test_a_type_of_tensors_that_is_not_read_is_refused_by_name(dtype: str, single: Path) -> None:
    def store(header: Config) -> None:
        entry = header["model.norm.weight"]
        entry |= {"dtype": dtype, "shape": [4 * entry["shape"][0]]}

    edit_header(single / "model.safetensors", store)
    assert f"model.norm.weight has the type {dtype}" in refusal(single)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"a": 1, "a": 2}', "has the key 'a' twice"),
    ],
)
def test_a_config_that_is_no_json_object_is_refused(text: bytes, words: str, single: Path) -> None:
    (single / "config.json").write_bytes(text)
    assert f"config.json {words}" in refusal(single)


@pytest.mark.parametrize("keep", [0, 7, 60, -1])
def test_a_truncated_file_is_refused(keep: int, single: Path) -> None:
    file = single / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert "model.safetensors is truncated or damaged" in refusal(single)


def test_tensors_that_overlap_are_refused(single: Path) -> None:
    def overlap(header: Config) -> None:
        part = "model.layers.{}.input_layernorm.weight"
        header[part.format(0)]["data_offsets"] = header[part.format(1)]["data_offsets"]

    edit_header(single / "model.safetensors", overlap)
    assert "truncated or damaged" in refusal(single)


def shards_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def test_a_missing_shard_is_named(sharded: Path) -> None:
    gone = shards_of(sharded)[2]
    gone.unlink()
    assert f"the file {gone.name} is missing" in refusal(sharded)


def test_a_truncated_shard_is_named(sharded: Path) -> None:
    cut = shards_of(sharded)[1]
    cut.write_bytes(cut.read_bytes()[:-1])
    assert f"{cut.name} is truncated" in refusal(sharded)


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    first, second = shards_of(sharded)[:2]
    second.write_bytes(first.read_bytes())
    told = f"is in {second.name}; model.safetensors.index.json says {first.name}"
    assert told in refusal(sharded)


@pytest.mark.parametrize("place", ["../x.safetensors", "x.bin", 3, None])
def test_an_index_names_files_of_its_folder_only(place: object, sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": place}}))
    assert "no file here" in refusal(sharded)


def test_an_index_that_promises_more_than_the_shards_hold_is_refused(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.extra.weight"] = shards_of(sharded)[0].name
    index.write_text(json.dumps(content))
    assert "does not hold model.extra.weight" in refusal(sharded)


def test_pickled_weights_are_refused_with_the_reason(single: Path) -> None:
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    assert "unpickling runs whatever code" in refusal(single)


def test_a_folder_of_gguf_files_says_which_to_name(tmp_path: Path) -> None:
    build_toy_model(tmp_path / "toy.gguf")
    assert "name the file: toy.gguf" in refusal(tmp_path)


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    assert "it has no config.json" in refusal(tmp_path)


@pytest.mark.parametrize("part", ["model.safetensors", "config.json"])
def test_a_file_of_a_folder_says_to_name_the_folder(part: str, single: Path) -> None:
    assert refusal(single / part).endswith(f"name its folder, {single}")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_is_no_file_to_wait_for(name: str, single: Path) -> None:
    (single / name).unlink()
    os.mkfifo(single / name)
    assert name in refusal(single)


def test_one_file_is_read_rather_than_an_index_beside_it(sharded: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    shard = build(whole, 1) / "model.safetensors"
    shard.rename(sharded / "model.safetensors")
    names = [file.name for file in open_model(sharded).files]
    assert "model.safetensors" in names
    assert not any("-of-" in name or "index" in name for name in names)
