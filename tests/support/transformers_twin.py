"""A GGUF toy as transformers has it: the same numbers in that library's class, config and order.

Knows the conventions that llama.cpp's converter turns around: rotary pairs of Llama lie as
neighbours in GGUF, and Gemma's norm weights have their 1 added. Shares no code with specd.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH, GGUFReader, get_tensor_name_map
from gguf.quants import dequantize
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

CONFIGS: Mapping[str, type[PreTrainedConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma3": Gemma3TextConfig,
}


def transformers_twin(path: Path, kind: str = "", **settings: Any) -> PreTrainedModel:
    """The toy in fp32, with eager attention.

    kind: the family in transformers, where GGUF has another name. settings: of its config, which
    the file has under other names; sizes are read from the file.
    """
    reader = GGUFReader(path)
    architecture = str(reader.fields["general.architecture"].contents())
    tensors = {
        tensor.name: torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        for tensor in reader.tensors
        if tensor.name != "rope_freqs.weight"
    }
    biased = {"attention_bias": True} if "blk.0.attn_output.bias" in tensors else {}
    config = CONFIGS[kind or architecture](
        **_sizes(reader, architecture),
        **biased,
        tie_word_embeddings="output.weight" not in tensors,
        attn_implementation="eager",
        **settings,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    names = get_tensor_name_map(MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    state = {}
    for name in model.state_dict():
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if theirs in tensors:
            state[name] = _as_theirs(name, tensors.pop(theirs), config, architecture)
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = ["lm_head.weight"] if config.tie_word_embeddings else []
    if tensors or unexpected or missing != tied:
        raise ValueError(f"left over: {sorted(tensors)}, missing: {missing}")
    model.tie_weights()
    return model.eval()


def _sizes(reader: GGUFReader, architecture: str) -> dict[str, Any]:
    def field(key: str, default: object = None) -> Any:
        found = reader.fields.get(f"{architecture}.{key}")
        return default if found is None else found.contents()

    hidden, heads = field("embedding_length"), field("attention.head_count")
    return {
        "num_hidden_layers": field("block_count"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": field("attention.head_count_kv"),
        "head_dim": field("attention.key_length", hidden // heads),
        "intermediate_size": field("feed_forward_length"),
        "vocab_size": field("vocab_size"),
        "max_position_embeddings": field("context_length"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "pad_token_id": None,
    }


def _as_theirs(
    name: str, tensor: torch.Tensor, config: PreTrainedConfig, architecture: str
) -> torch.Tensor:
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        pairs = tensor.view(-1, config.head_dim // 2, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)
    if architecture == "gemma3" and "norm" in name:
        return tensor - 1
    return tensor
