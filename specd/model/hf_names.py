"""Names in a Hugging Face folder: of its files, and of its tensors as GGUF calls them.

Knows which tensors a config asks for; reads nothing. Invariant: every tensor of a folder gets a
GGUF name, is known to be no part of the text model, or is refused by name; none is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specd.errors import ModelFileError
from specd.model.hf_classes import WITH_VISION
from specd.model.hf_config import FolderConfig

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# What decides how text becomes tokens, and where an answer ends.
TEXT_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)
EMBEDDING, HEAD = "token_embd.weight", "output.weight"

_AROUND = {
    "model.embed_tokens.weight": EMBEDDING,
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": HEAD,
}
_LINEAR = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_NORMS_OF: Mapping[str, Mapping[str, str]] = {
    "llama": _NORMS,
    "qwen2": _NORMS,
    "qwen3": _NORMS | _QK_NORMS,
    "gemma3": _QK_NORMS
    | {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}
# Constants that old checkpoints carry and every reader computes from the config.
_BUFFER = re.compile(r"(.*\.)?rotary_emb(_local)?\.([a-z_]+_)?inv_freq")
_VISION = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")
# Where the text model lies in a class with vision; transformers has changed it over time.
_INNER = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
)


@dataclass(frozen=True, slots=True)
class MappedNames:
    """stored: GGUF names to those of the folder. num_vision: tensors of the vision tower."""

    stored: Mapping[str, str]
    num_vision: int


def map_names(names: Iterable[str], config: FolderConfig) -> MappedNames:
    """Give every tensor its GGUF name.

    Raises: ModelFileError for one that is unknown, missing, or there twice.
    """
    wanted = _wanted(config)
    stored: dict[str, str] = {}
    num_vision = 0
    for name in names:
        if config.class_name == WITH_VISION and _VISION.match(name):
            num_vision += 1
            continue
        inner = _inner(name) if config.class_name == WITH_VISION else name
        if _BUFFER.fullmatch(inner):
            continue
        known = wanted.get(inner)
        if known is None:
            raise ModelFileError(f"the tensor {name} has no place in a {config.class_name}")
        if known in stored:
            raise ModelFileError(f"{name} and {stored[known]} are the same tensor twice")
        stored[known] = name
    _refuse_missing(wanted, stored, config)
    return MappedNames(stored, num_vision)


def _inner(name: str) -> str:
    for prefix, instead in _INNER:
        if name.startswith(prefix):
            return instead + name.removeprefix(prefix)
    return name


def _wanted(config: FolderConfig) -> dict[str, str]:
    """All names that such a checkpoint may have, with those of GGUF."""
    parts = {**_LINEAR, **_NORMS_OF[config.family.architecture]}
    suffixed = {f"{hf}.weight": f"{gguf}.weight" for hf, gguf in parts.items()}
    suffixed |= {
        f"{hf}.bias": f"{gguf}.bias" for hf, gguf in parts.items() if gguf in config.biases
    }
    return _AROUND | {
        f"model.layers.{layer}.{hf}": f"blk.{layer}.{gguf}"
        for layer in range(config.num_layers)
        for hf, gguf in suffixed.items()
    }


def _refuse_missing(
    wanted: Mapping[str, str], stored: Mapping[str, str], config: FolderConfig
) -> None:
    for name, known in wanted.items():
        # One of the two is enough where they are tied.
        is_other_there = config.is_tied and {EMBEDDING, HEAD} & stored.keys()
        if known not in stored and not (known in {EMBEDDING, HEAD} and is_other_there):
            raise ModelFileError(f"the tensor {name} is missing")
