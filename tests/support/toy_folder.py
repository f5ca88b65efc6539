"""Builds toy models as Hugging Face folders: by transformers itself, or the twin of a GGUF toy.

Knows the classes of transformers and what they save, nothing of specd but its reader of GGUF files.
Invariant: equal arguments give equal tensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.toy_gguf import (
    CHAT_TEMPLATE,
    IM_END,
    IM_START,
    SPECIALS,
    ToyVocabulary,
)
from specd.model.gguf_file import GGUFFile

NUM_LAYERS = 7  # one more than the period of Gemma 3's layers
SIZES: Mapping[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # loud enough for attention to choose
}
_VISION: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
CONFIGS: Mapping[str, str] = {
    "LlamaForCausalLM": "LlamaConfig",
    "MistralForCausalLM": "MistralConfig",
    "Qwen2ForCausalLM": "Qwen2Config",
    "Qwen3ForCausalLM": "Qwen3Config",
    "Gemma3ForCausalLM": "Gemma3TextConfig",
}
WITH_VISION = "Gemma3ForConditionalGeneration"


def save_folder(
    path: Path,
    class_name: str,
    *,
    dtype: str = "float32",
    max_shard_size: str = "1GB",
    **settings: Any,
) -> Any:
    """Let transformers save a toy with random weights to `path`, and return its model."""
    # Five seconds to import, and a twin does without.
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    if class_name == WITH_VISION:
        text = {**SIZES, **settings}
        config = transformers.Gemma3Config(text_config=text, vision_config=dict(_VISION))
    else:
        config = getattr(transformers, CONFIGS[class_name])(**{**SIZES, **settings})
    model = getattr(transformers, class_name)(config).to(getattr(torch, dtype))
    for name, values in model.state_dict().items():
        if "norm" in name or name.endswith("bias"):  # else they are all zero, or all one
            torch.nn.init.normal_(values, mean=float(values.mean()), std=0.1)
    model.save_pretrained(path, max_shard_size=max_shard_size)
    return model


def edit_config(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change config.json in place."""
    config = json.loads((folder / "config.json").read_text())
    edit(config)
    (folder / "config.json").write_text(json.dumps(config))


def edit_header(file: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of a safetensors file; the bytes of its tensors stay."""
    content = file.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    edit(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


def twin_folder(gguf: Path, folder: Path, vocabulary: ToyVocabulary, *, shards: int = 1) -> None:
    """Write the model of an fp32 GGUF toy as a folder: the same weights, the same tokenizer."""
    folder.mkdir()
    file = GGUFFile.open(gguf)
    sizes = {key.removeprefix("llama."): value for key, value in file.metadata.items()}
    heads, kv_heads = sizes["attention.head_count"], sizes["attention.head_count_kv"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": sizes["vocab_size"],
        "hidden_size": sizes["embedding_length"],
        "intermediate_size": sizes["feed_forward_length"],
        "num_hidden_layers": sizes["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": sizes["context_length"],
        "rms_norm_eps": sizes["attention.layer_norm_rms_epsilon"],
        "rope_theta": sizes["rope.freq_base"],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": vocabulary.id_of(IM_START),
        "eos_token_id": vocabulary.id_of(IM_END),
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, tensor in file.tensors.items():
        values = tensor.data.view(np.float32).reshape(tensor.shape)
        if "attn_q" in name or "attn_k" in name:
            values = _halves(values, int(str(heads if "attn_q" in name else kv_heads)))
        tensors[_hf_name(name)] = values
    _save_shards(folder, tensors, shards)
    write_tokenizer(folder, vocabulary)


def _halves(rows: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Rotary pairs that are neighbours in GGUF are halves of a head here."""
    pairs = rows.reshape(num_heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def _hf_name(name: str) -> str:
    if not name.startswith("blk."):
        return {
            "token_embd.weight": "model.embed_tokens.weight",
            "output_norm.weight": "model.norm.weight",
            "output.weight": "lm_head.weight",
        }[name]
    _, layer, part, _ = name.split(".")
    inner = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }[part]
    return f"model.layers.{layer}.{inner}.weight"


def _save_shards(folder: Path, tensors: dict[str, Any], count: int) -> None:
    if count == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = sorted(tensors)
    weight_map = {}
    for place in range(count):
        file_name = f"model-{place + 1:05}-of-{count:05}.safetensors"
        part = {name: tensors[name] for name in names[place::count]}
        save_file(part, folder / file_name)
        weight_map |= dict.fromkeys(part, file_name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_tokenizer(folder: Path, vocabulary: ToyVocabulary) -> None:
    """Write the tokenizer of a GGUF toy as a folder has it."""
    ids = {token: place for place, token in enumerate(vocabulary.tokens)}
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    plain = {token: place for token, place in ids.items() if token not in SPECIALS}
    tokenizer = Tokenizer(models.BPE(plain, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([
        AddedToken(token, special=True, normalized=False) for token in sorted(SPECIALS, key=ids.get)
    ])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": IM_START,
        "eos_token": IM_END,
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
