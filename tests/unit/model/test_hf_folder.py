"""Hugging Face folders as transformers saves them, and folders that nobody should serve."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.toy_gguf import build_toy_model
from specd.cli.main import main
from specd.device.texts import Feeder, Part, Text, random_ids
from specd.errors import ModelFileError
from specd.model.arch import config_from_gguf
from specd.model.inspection import groups, inspect
from specd.model.opening import open_model
from specd.model.source import ModelSource
from tests.support.toy_folder import (
    NUM_LAYERS,
    WITH_VISION,
    edit_config,
    edit_header,
    save_folder,
    twin_folder,
)
from tests.unit.device.texts import load_runner, torch_threads

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    WITH_VISION: "gemma3",
}
LLAMA3 = {
    "rope_theta": 1e4,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
WINDOW = {"sliding_window": 20}
LAST = {"use_sliding_window": True, "max_window_layers": 3}
Config = dict[str, Any]
COMPUTED: list[tuple[str, Config]] = [
    ("LlamaForCausalLM", {}),
    ("LlamaForCausalLM", {"attention_bias": True, "rope_parameters": LLAMA3}),
    ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("MistralForCausalLM", WINDOW),
    ("Qwen2ForCausalLM", WINDOW | LAST),
    ("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
    ("Gemma3ForCausalLM", WINDOW | {"query_pre_attn_scalar": 24}),
    (WITH_VISION, WINDOW | {"rope_parameters": GEMMA_ROPES}),
]


def setting(**settings: Any) -> Callable[[Config], object]:
    return lambda config: config.update(settings)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """A folder and a model of every class. Tests that change a folder change a copy."""
    root = tmp_path_factory.mktemp("saved")
    return {
        name: (root / name, save_folder(root / name, name, sliding_window=64))
        for name in ARCHITECTURES
    }


@pytest.fixture
def llama(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved["LlamaForCausalLM"][0], tmp_path / "llama"))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_folder(tmp_path / "sharded", "LlamaForCausalLM", max_shard_size="100KB")
    return tmp_path / "sharded"


def values(source: ModelSource, name: str) -> torch.Tensor:
    info = source.tensors[name]
    kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[info.type_name]
    return torch.from_numpy(info.data).view(kind).reshape(info.shape)


def refusal(folder: Path) -> str:
    """The one sentence with which a folder is refused, soon."""
    began = time.process_time()
    with pytest.raises(ModelFileError) as caught:
        config_from_gguf(open_model(folder).metadata)
    assert time.process_time() - began < 2
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500
    return message


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_class_gives_a_config_that_is_served(
    name: str, saved: dict[str, tuple[Path, Any]]
) -> None:
    source = open_model(saved[name][0])
    config = config_from_gguf(source.metadata)
    assert (config.name, config.architecture) == (name, ARCHITECTURES[name])
    assert (config.num_layers, config.hidden_size, config.ffn_size) == (NUM_LAYERS, 64, 96)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 32)
    assert (config.vocab_size, config.context_length) == (512, 512)
    assert config.norm_eps == 1e-6
    assert not source.interleaved_rope
    assert source.norms_lack_offset == (config.architecture == "gemma3")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_parameter_of_the_text_model_is_there_with_its_bits(
    name: str, saved: dict[str, tuple[Path, Any]]
) -> None:
    folder, model = saved[name]
    source = open_model(folder)
    text = model.model.language_model if name == WITH_VISION else model.model
    assert torch.equal(values(source, "token_embd.weight"), text.embed_tokens.weight)
    assert torch.equal(values(source, "output_norm.weight"), text.norm.weight)
    last = text.layers[NUM_LAYERS - 1]
    block = f"blk.{NUM_LAYERS - 1}."
    for part, module in {
        "attn_q": last.self_attn.q_proj,
        "attn_k": last.self_attn.k_proj,
        "attn_v": last.self_attn.v_proj,
        "attn_output": last.self_attn.o_proj,
        "ffn_gate": last.mlp.gate_proj,
        "ffn_up": last.mlp.up_proj,
        "ffn_down": last.mlp.down_proj,
        "attn_norm": last.input_layernorm,
        "ffn_norm": getattr(last, "pre_feedforward_layernorm", last.post_attention_layernorm),
    }.items():
        assert torch.equal(values(source, f"{block}{part}.weight"), module.weight), part
    count = sum(1 for _ in text.parameters()) + (name not in {WITH_VISION, "Gemma3ForCausalLM"})
    assert len(source.tensors) == count


def test_norms_and_biases_that_only_some_families_have_are_told_apart(
    saved: dict[str, tuple[Path, Any]],
) -> None:
    folder, model = saved["Gemma3ForCausalLM"]
    source, layer = open_model(folder), model.model.layers[0]
    after = {
        "post_attention_norm": layer.post_attention_layernorm,
        "post_ffw_norm": layer.post_feedforward_layernorm,
        "attn_q_norm": layer.self_attn.q_norm,
        "attn_k_norm": layer.self_attn.k_norm,
    }
    for part, module in after.items():
        assert torch.equal(values(source, f"blk.0.{part}.weight"), module.weight), part
    folder, model = saved["Qwen2ForCausalLM"]
    source, attention = open_model(folder), model.model.layers[0].self_attn
    assert torch.equal(values(source, "blk.0.attn_k.bias"), attention.k_proj.bias)
    assert "blk.0.attn_output.bias" not in source.tensors


@pytest.mark.parametrize(("name", "settings"), COMPUTED)
def test_a_folder_gives_the_logits_of_transformers(
    name: str, settings: Config, tmp_path: Path
) -> None:
    model = save_folder(tmp_path / "folder", name, **settings)
    ids = random_ids(512, 150, seed=1)
    text = Text(ids)
    with torch_threads(1), torch.inference_mode():
        Feeder(load_runner(tmp_path / "folder", "fp32")).run([Part(text, len(ids), chunk=True)])
        wanted = model(input_ids=torch.tensor([ids])).logits[0, -1]
    error = (text.logits[len(ids) - 1] - wanted).norm() / wanted.norm()
    assert error < 1e-4  # measured: 8e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_give_what_one_file_gives(dtype: str, tmp_path: Path) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    save_folder(one, "Qwen3ForCausalLM", dtype=dtype)
    save_folder(many, "Qwen3ForCausalLM", dtype=dtype, max_shard_size="60KB")
    single, split = open_model(one), open_model(many)
    assert len(split.files) > 5
    assert {info.type_name for info in split.tensors.values()} == {DTYPES[dtype]}
    assert single.tensors.keys() == split.tensors.keys()
    for name, info in single.tensors.items():
        assert info.shape == split.tensors[name].shape
        assert np.array_equal(info.data, split.tensors[name].data)


def test_tensors_are_flat_bytes_of_the_mapped_file(llama: Path) -> None:
    content = (llama / "model.safetensors").read_bytes()
    source = open_model(llama)
    info = source.tensors["blk.0.ffn_up.weight"]
    assert (info.name, info.data.dtype, info.data.ndim) == ("blk.0.ffn_up.weight", np.uint8, 1)
    assert all(tensor.data.base is not None for tensor in source.tensors.values())
    info.data[:] = 0
    assert (llama / "model.safetensors").read_bytes() == content, "writing stays in memory"
    mapped = Path("/proc/self/maps")
    if mapped.exists():
        assert str(llama / "model.safetensors") in mapped.read_text()


def test_the_files_that_decide_the_output_are_listed_in_order(sharded: Path) -> None:
    (sharded / "tokenizer.json").write_text("{}")
    (sharded / "README.md").write_text("nothing")
    names = [file.name for file in open_model(sharded).files]
    shards = sorted(file.name for file in sharded.glob("*.safetensors"))
    index = "model.safetensors.index.json"
    assert names == ["config.json", index, "generation_config.json", "tokenizer.json", *shards]


def test_the_vision_tower_is_left_out_and_that_is_told(
    saved: dict[str, tuple[Path, Any]], llama: Path
) -> None:
    source = open_model(saved[WITH_VISION][0])
    assert len(source.notes) == 1
    assert "tensors for images are left out" in source.notes[0]
    assert not any("vision" in name for name in source.tensors)
    rename = {"lm_head.weight": "vision_tower.weight"}
    edit_header(llama / "model.safetensors", lambda header: _rename(header, rename))
    assert "vision_tower.weight has no place in a LlamaForCausalLM" in refusal(llama)


def test_inspect_shows_what_is_left_out(
    saved: dict[str, tuple[Path, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["inspect", str(saved[WITH_VISION][0]), "--threads", "1", "--weights", "bf16"]
    for flags in ([], ["--json"]):
        assert main([*command, *flags]) == 1, "it has no tokenizer"
    table, _, document = capsys.readouterr().out.rpartition('{"path"')
    (note,) = json.loads('{"path"' + document)["notes"]
    assert note in table


def test_inspect_tells_of_a_folder_what_it_tells_of_the_gguf_file(tmp_path: Path) -> None:
    vocabulary = build_toy_model(tmp_path / "toy.gguf")
    twin_folder(tmp_path / "toy.gguf", tmp_path / "twin", vocabulary, shards=2)
    of_file, of_folder = (inspect(tmp_path / name, "bf16", 64) for name in ("toy.gguf", "twin"))
    assert of_folder.problem is None
    assert of_folder.tokenizer == of_file.tokenizer
    assert of_folder.has_chat_template and of_file.has_chat_template
    assert (of_folder.step, groups(of_folder)) == (of_file.step, groups(of_file))
    assert of_folder.file_bytes == sum(
        file.stat().st_size for file in (tmp_path / "twin").iterdir()
    )


def _rename(header: Config, names: dict[str, str]) -> None:
    for old, new in names.items():
        header[new] = header.pop(old)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_the_text_model_is_found_wherever_a_class_with_vision_has_put_it(
    prefix: str, saved: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved[WITH_VISION][0], tmp_path / "moved"))
    before = "language_model.model."

    def move(header: Config) -> None:
        inner = [name for name in header if name.startswith(before)]
        assert inner
        _rename(header, {name: prefix + name.removeprefix(before) for name in inner})

    edit_header(folder / "model.safetensors", move)
    assert open_model(folder).tensors.keys() == open_model(saved[WITH_VISION][0]).tensors.keys()


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]
)
def test_buffers_of_old_checkpoints_are_passed_over(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "tied"
    save_folder(folder, "LlamaForCausalLM", tie_word_embeddings=True)
    before = open_model(folder)
    file = folder / "model.safetensors"
    content = file.read_bytes()

    def add(header: Config) -> None:
        end = max(entry["data_offsets"][1] for key, entry in header.items() if key[:2] != "__")
        header[name] = {"dtype": "F32", "shape": [2], "data_offsets": [end, end + 8]}

    file.write_bytes(content + bytes(8))
    edit_header(file, add)
    assert open_model(folder).tensors.keys() == before.tensors.keys()


def test_a_tied_model_has_no_head_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "tied"
    save_folder(folder, "LlamaForCausalLM", tie_word_embeddings=True)
    assert "output.weight" not in open_model(folder).tensors


@pytest.mark.parametrize("differs", [False, True])
def test_a_tied_model_that_holds_both_uses_both_only_where_they_differ(
    differs: bool, llama: Path
) -> None:
    edit_config(llama, setting(tie_word_embeddings=True))
    tensors = load_file(llama / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + differs
    save_file(tensors, llama / "model.safetensors")
    source = open_model(llama)
    assert ("output.weight" in source.tensors) == differs
    assert ["differ" in note for note in source.notes] == [True] * differs


def test_a_tied_model_may_hold_the_head_alone(llama: Path) -> None:
    edit_config(llama, setting(tie_word_embeddings=True))
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.embed_tokens.weight"]
    save_file(tensors, llama / "model.safetensors")
    source = open_model(llama)
    assert "output.weight" not in source.tensors
    assert torch.equal(values(source, "token_embd.weight"), tensors["lm_head.weight"])


def test_an_untied_model_without_a_head_is_refused(llama: Path) -> None:
    rename = {"lm_head.weight": "model.rotary_emb.inv_freq"}
    edit_header(llama / "model.safetensors", lambda header: _rename(header, rename))
    assert "lm_head.weight is missing" in refusal(llama)


def test_biases_that_the_config_asks_for_are_tensors_of_the_model(tmp_path: Path) -> None:
    save_folder(tmp_path / "biased", "LlamaForCausalLM", attention_bias=True)
    tensors = open_model(tmp_path / "biased").tensors
    assert {f"blk.0.attn_{part}.bias" for part in ("q", "k", "v", "output")} <= tensors.keys()
    edit_config(tmp_path / "biased", setting(attention_bias=False))
    assert "bias has no place" in refusal(tmp_path / "biased")
