"""`specd inspect` as a process: tables, the JSON document, and files that cannot be served."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from gguf import GGMLQuantizationType
from specd_client.v1 import model_pb2, model_pb2_grpc

from specd.core import library
from tests.support.commands import specd
from tests.support.daemon import Daemon, spawned

# What is chosen here, and how it holds blocks of type Q4_1.
KERNELS = (*library.supported(), "torch")[0]
IN_MEMORY = "int4" if KERNELS == "torch" else "q4_m"
# Where a GGUF file says a tensor's type: behind its name, two dimensions and their number.
TYPE_OFFSET = 4 + 2 * 8


def _inspect(model: Path | str, *flags: str) -> subprocess.CompletedProcess[str]:
    return specd("inspect", str(model), "--threads", "1", *flags)


def _document(model: Path, *flags: str, status: int = 0) -> dict[str, Any]:
    done = _inspect(model, "--json", *flags)
    assert done.returncode == status, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory, odd_toy: Path) -> Path:
    """The odd toy with the name of an architecture that nobody has."""
    path = tmp_path_factory.mktemp("foreign") / "foreign.gguf"
    path.write_bytes(odd_toy.read_bytes().replace(b"llama", b"mamba"))
    return path


def test_it_tells_of_the_tokenizer_what_the_daemon_tells(daemon: Daemon, toy: Path) -> None:
    with grpc.insecure_channel(daemon.address) as channel:
        request = model_pb2.GetModelRequest()
        info = model_pb2_grpc.ModelServiceStub(channel).GetModel(request).model
    document = _document(toy)
    assert document["tokenizer"]["fingerprint"] == info.tokenizer_fingerprint
    assert document["tokenizer"]["vocab_size"] == info.vocab_size
    assert [token["id"] for token in document["tokenizer"]["eos"]] == list(info.eos_token_ids)
    assert document["has_chat_template"] == info.has_chat_template
    assert document["numbers"]["context_length"] == info.context_length


def test_the_document_has_formats_and_the_floor(odd_toy: Path) -> None:
    document = _document(odd_toy, "--context", "64")
    assert (document["can_be_served"], document["problem"]) == (True, None)
    layers = [group for group in document["groups"] if group["use"] == "layer"]
    assert [(group["type"], group["format"]) for group in layers] == [("Q4_1", IN_MEMORY)]
    step = document["step"]
    assert step["total_bytes"] == step["layer_bytes"] + step["head_bytes"] + step["kv_bytes"]
    assert step["kv_bytes"] == 64 * 2 * 2 * 2 * 32 * 2  # layers, K and V, heads, elements, bf16
    assert step["floor_ms"] == pytest.approx(step["total_bytes"] / step["read_bytes_per_s"] * 1000)
    assert step["ceiling_tokens_per_s"] == pytest.approx(1000 / step["floor_ms"])
    assert step["threads"] == 1


def test_formats_and_errors_are_those_of_the_kernels_that_are_asked_for(odd_toy: Path) -> None:
    groups = _document(odd_toy, "--kernels", "torch")["groups"]
    (layers,) = (group for group in groups if group["use"] == "layer")
    assert (layers["type"], layers["format"]) == ("Q4_1", "int4")
    assert 0 < layers["relative_rms_error"] < 0.01  # scales in bf16; the core keeps every bit


def test_the_format_in_memory_is_the_one_that_was_asked_for(odd_toy: Path) -> None:
    document = _document(odd_toy, "--weights", "fp32", "--tensors")
    assert {tensor["format"] for tensor in document["tensors"]} == {"fp32"}
    assert {tensor["relative_rms_error"] for tensor in document["tensors"]} == {0.0}


def test_the_tables_fit_one_hundred_columns(odd_toy: Path) -> None:
    # By name, so that nobody is warned where the core is not there.
    done = _inspect(odd_toy, "--tensors", "--kernels", KERNELS)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines()[1:])) <= 100
    for word in (
        "Q4_1",
        IN_MEMORY,
        "chat template: yes",
        "blk.1.ffn_down.weight",
        "tokens/s",
    ):
        assert word in done.stdout


def test_an_architecture_that_cannot_be_served_is_told_of_all_the_same(foreign: Path) -> None:
    document = _document(foreign, "--tensors", status=1)
    assert "architecture 'mamba' is not supported" in document["problem"]
    assert (document["can_be_served"], document["step"]) == (False, None)
    assert document["tokenizer"]["vocab_size"] == 1021
    assert document["numbers"]["block_count"] == 2
    assert {(group["type"], group["format"]) for group in document["groups"]} == {
        ("Q4_1", None),
        ("F32", None),
    }
    assert len(document["tensors"]) == document["num_tensors"]
    done = _inspect(foreign)
    assert done.returncode == 1
    assert f"It cannot be served: {document['problem']}" in done.stdout
    assert done.stderr == f"specd: {document['problem']}\n"


def test_block_types_that_cannot_be_served_are_told_of_all_the_same(
    tmp_path: Path, odd_toy: Path
) -> None:
    path, name = tmp_path / "iq4.gguf", b"blk.1.ffn_down.weight"
    whole = bytearray(odd_toy.read_bytes())
    # Blocks of this type are smaller, so that they lie where the others lay.
    place = whole.index(name) + len(name) + TYPE_OFFSET
    whole[place] = GGMLQuantizationType.IQ4_NL
    path.write_bytes(whole)
    document = _document(path, status=1)
    assert "has block type IQ4_NL, which is not supported" in document["problem"]
    assert {group["type"] for group in document["groups"]} == {"IQ4_NL", "Q4_1", "F32"}


@pytest.mark.parametrize("kind", ["empty", "text", "truncated", "missing", "folder"])
def test_a_file_that_is_no_model_is_the_sentence_of_serve(
    tmp_path: Path, toy: Path, kind: str
) -> None:
    path = tmp_path / "bad.gguf"
    whole = toy.read_bytes()
    contents = {"empty": b"", "text": b"Once upon a time", "truncated": whole[: len(whole) // 2]}
    if kind in contents:
        path.write_bytes(contents[kind])
    elif kind == "folder":
        path.mkdir()
    done = _inspect(path, "--json")
    assert done.returncode == 1
    with spawned(path) as daemon:
        daemon.wait_exit()
        assert done.stderr in daemon.log
    assert done.stderr == f"specd: {json.loads(done.stdout)['error']}\n"


def test_a_vocabulary_that_is_too_large_is_the_sentence_of_serve(tmp_path: Path, toy: Path) -> None:
    path = tmp_path / "bad.gguf"
    whole = toy.read_bytes()
    place = whole.index(b"llama.vocab_size") + len(b"llama.vocab_size") + 4
    path.write_bytes(whole[:place] + (100).to_bytes(4, "little") + whole[place + 4 :])
    done = _inspect(path)
    assert (done.returncode, done.stderr) == (
        1,
        "specd: the tokenizer has 512 tokens and the model 100\n",
    )


def test_a_context_beyond_the_model_is_refused(toy: Path) -> None:
    done = _inspect(toy, "--context", "513")
    assert (done.returncode, done.stdout) == (1, "")
    assert "a context of 513 positions is more than the 512 of the model" in done.stderr


@pytest.mark.parametrize(
    "flags",
    [(), ("m", "--weights", "int2"), ("m", "--context", "0"), ("m", "--threads", "x"), ("m", "n")],
)
def test_wrong_usage_is_status_two(flags: tuple[str, ...]) -> None:
    done = specd("inspect", *flags)
    assert (done.returncode, done.stdout) == (2, "")


def test_the_help_of_the_command_line_does_without_torch() -> None:
    done = specd("inspect", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    assert "argparse" in done.stderr and "torch" not in done.stderr
