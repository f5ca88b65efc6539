"""Starting: a file that cannot be served is refused soon, in one sentence that says why."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from benchmarks.toy_gguf import build_toy_model
from specd.core import library
from specd.device.assembly import DeviceSettings
from specd.device.boot import boot, fingerprint
from specd.device.core_runner import CoreRunner
from specd.device.eager import EagerRunner
from specd.errors import ModelFileError, StartFailed
from specd.kv.pages import PAGE_SIZE, RESERVED_PAGES

SOON_S = 2.0


def settings_for(path: Path, **changes: Any) -> DeviceSettings:
    values: dict[str, Any] = {
        "model_path": path,
        "weights": "bf16",
        "invariance": "strict",
        "kernels": "auto",
        "kv_memory": 1 << 24,
        "max_rows": 4,
        "max_positions": 64,
        "num_threads": 1,
    }
    return DeviceSettings(**values | changes)


@pytest.fixture(scope="module")
def toy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    build_toy_model(path, linear_type="Q4_1", embed_type="Q8_0", layers=1)
    return path


def edited(
    source: Path,
    target: Path,
    *,
    drop: str = "",
    cut: str = "",
    retype: str = "",
    add: str = "",
    architecture: str = "llama",
) -> Path:
    """Copy a model with one tensor dropped, cut by a row, stored as IQ4_NL, or added."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            key = field.name.replace("llama.", f"{architecture}.", 1)
            sub_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type)
    for tensor in reader.tensors:
        values, kind = tensor.data, tensor.tensor_type
        if tensor.name == drop:
            continue
        if tensor.name == cut:
            values = values[:-1]
        if tensor.name == retype:
            kind = GGMLQuantizationType.IQ4_NL  # 18 bytes for 32 weights
            values = np.zeros((len(values), int(tensor.shape[0]) // 32 * 18), np.uint8)
        writer.add_tensor(tensor.name, np.array(values), raw_dtype=kind)
    if add:
        writer.add_tensor(add, np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def refusal(settings: DeviceSettings) -> str:
    """The sentence with which a start is refused, which must come soon."""
    start = time.monotonic()
    with pytest.raises(StartFailed) as refused:
        boot(settings)
    assert time.monotonic() - start < SOON_S
    sentence = str(refused.value)
    assert "\n" not in sentence and len(sentence) < 400
    return sentence


def test_an_edit_without_changes_serves(toy_path: Path, tmp_path: Path) -> None:
    assert boot(settings_for(edited(toy_path, tmp_path / "same.gguf"))).report.invariant


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "mamba"}, ("'mamba'", "not supported", "llama")),
        ({"drop": "blk.0.ffn_up.weight"}, ("blk.0.ffn_up.weight",)),
        ({"drop": "output_norm.weight"}, ("output_norm.weight",)),
        ({"drop": "token_embd.weight"}, ("token_embd.weight",)),
        ({"cut": "blk.0.attn_k.weight"}, ("blk.0.attn_k.weight", "(63, 128)", "(64, 128)")),
        ({"cut": "token_embd.weight"}, ("token_embd.weight", "511", "512")),
        ({"retype": "blk.0.attn_v.weight"}, ("blk.0.attn_v.weight", "IQ4_NL", "Q4_1")),
        ({"add": "rope_freqs.weight"}, ("rope_freqs.weight",)),
        ({"add": "blk.0.attn_q.bias"}, ("blk.0.attn_q.bias",)),
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def test_a_file_that_is_not_this_model_is_refused_by_name(
    toy_path: Path, tmp_path: Path, changes: dict[str, str], words: tuple[str, ...]
) -> None:
    path = edited(toy_path, tmp_path / "edited.gguf", **changes)
    sentence = refusal(settings_for(path))
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.1, 0.5, 0.999])
def test_a_truncated_file_is_refused(toy_path: Path, tmp_path: Path, share: float) -> None:
    data = toy_path.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(len(data) * share)])
    assert str(path) in refusal(settings_for(path))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(1000))
    assert str(path) in refusal(settings_for(path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="nowhere"):
        boot(settings_for(tmp_path / "nowhere.gguf"))


def test_a_kv_memory_below_one_page_is_refused_with_the_flag(toy_path: Path) -> None:
    sentence = refusal(settings_for(toy_path, kv_memory=1000))
    assert "--kv-memory" in sentence and "1000" in sentence


def test_the_reserved_pages_alone_are_no_pool(toy_path: Path) -> None:
    enough = (RESERVED_PAGES + 1) * page_bytes()
    assert "--kv-memory" in refusal(settings_for(toy_path, kv_memory=enough - 1))


def page_bytes(layers: int = 1, kv_width: int = 2 * 2 * 32, item: int = 2) -> int:
    return layers * PAGE_SIZE * kv_width * item


def test_kv_memory_becomes_whole_pages(toy_path: Path) -> None:
    for pages in (1, 2, 7):
        memory = (pages + RESERVED_PAGES + 1) * page_bytes() - 1
        booted = boot(settings_for(toy_path, kv_memory=memory))
        assert booted.num_pages == booted.runner.num_pages == pages


def test_no_more_pages_are_made_than_all_rows_can_use(toy_path: Path) -> None:
    booted = boot(settings_for(toy_path, kv_memory=1 << 28, max_rows=3))
    assert booted.num_pages == 3 * 512 // PAGE_SIZE


def test_a_boot_reports_its_stages_in_order(toy_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    boot(settings_for(toy_path), lambda *stage: seen.append(stage))
    stages = list(dict.fromkeys(name for name, _, _ in seen))
    assert stages == ["loading", "warming up"]
    for stage in stages:
        done = [(done, total) for name, done, total in seen if name == stage]
        assert done == [(number, len(done)) for number in range(1, len(done) + 1)]


def test_the_asked_number_of_threads_is_set(toy_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        boot(settings_for(toy_path, num_threads=2, kernels="torch"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not library.supported(), reason="there is no core here")
def test_the_core_has_the_threads_and_torch_leaves_none_spinning(toy_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        runner = boot(settings_for(toy_path, num_threads=3)).runner
        assert isinstance(runner, CoreRunner)
        assert (runner.decoder.num_threads, torch.get_num_threads()) == (3, 1)
    finally:
        torch.set_num_threads(before)


def test_relaxed_is_what_the_operator_gets_when_asked_for(toy_path: Path) -> None:
    booted = boot(settings_for(toy_path, invariance="relaxed", kernels="torch"))
    assert isinstance(booted.runner, EagerRunner)
    assert booted.invariance == "relaxed" and not booted.runner.strict


def test_strict_is_not_promised_where_the_probe_found_something(
    toy_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specd.device.sampler_probe.same_bits", lambda one, other: False)
    booted = boot(settings_for(toy_path))
    assert booted.invariance == "relaxed"
    facts = [toy_path], ["bf16", "bf16"], booted.runner.kernels, 1
    strict = fingerprint(*facts, "strict")
    assert booted.fingerprint == fingerprint(*facts, "relaxed") != strict


def test_the_fingerprint_names_everything_that_decides_a_bit(
    toy_path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    build_toy_model(other, seed=1)
    prints = [
        boot(settings_for(toy_path)).fingerprint,
        boot(settings_for(toy_path, weights="int4")).fingerprint,
        boot(settings_for(toy_path, weights="fp32")).fingerprint,
        boot(settings_for(toy_path, invariance="relaxed")).fingerprint,
        boot(settings_for(toy_path, kernels="torch")).fingerprint,
        boot(settings_for(toy_path, num_threads=2)).fingerprint,
        boot(settings_for(other)).fingerprint,
    ]
    torch.set_num_threads(1)
    assert len(set(prints)) == len(prints)
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(toy_path.read_bytes())
    assert boot(settings_for(moved)).fingerprint == prints[0]


def test_what_does_not_decide_a_bit_is_not_in_the_fingerprint(toy_path: Path) -> None:
    first = boot(settings_for(toy_path)).fingerprint
    changed = settings_for(toy_path, kv_memory=1 << 23, max_rows=2, max_positions=128)
    assert boot(changed).fingerprint == first


def test_another_processor_is_another_arithmetic_only_where_torch_multiplies(
    toy_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its libraries choose by the processor; the core's instruction set is a fact of its own."""

    def prints() -> list[str]:
        names = ("torch", "avx2")
        return [fingerprint([toy_path], ["bf16"], name, 1, "strict") for name in names]

    here = prints()
    told = dict(torch.cpu.get_capabilities())
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told | {"amx_tile": "other"})
    torch_there, core_there = prints()
    assert torch_there != here[0]
    assert core_there == here[1]
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told | {"num_sockets": 7})
    assert prints() == here
