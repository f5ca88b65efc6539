"""The classes of transformers that specd serves, as data, and typed look-ups in their settings.

Knows the defaults of each class's config, because a config.json leaves out what equals them.
Invariant: every look-up gives a value of the right type or a sentence with the setting's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from specd.errors import ModelFileError

# The class whose checkpoints hold a vision tower beside the text model.
WITH_VISION = "Gemma3ForConditionalGeneration"
MISSING = object()


@dataclass(frozen=True, slots=True)
class HFClass:
    """One class of transformers: `architecture` is GGUF's name, `defaults` are of its config.

    window: which layers slide. everywhere: all, if `sliding_window` is there. last: those from
    `max_window_layers` on, if `use_sliding_window`. periodic: all but each
    `sliding_window_pattern`th. `layer_types` is read before the last two.
    has_qkv_bias: at any rate; `attention_bias` gives the output projection one, too.
    """

    architecture: str
    defaults: Mapping[str, object]
    activation: str = "silu"
    window: Literal["none", "everywhere", "last", "periodic"] = "none"
    has_qkv_bias: bool = False
    reads_attention_bias: bool = False


_COMMON: Mapping[str, object] = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
    "attention_bias": False,
}
_QWEN: Mapping[str, object] = {
    **_COMMON,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_MISTRAL: Mapping[str, object] = {
    **_COMMON,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
# Gemma 3's own files give four sizes and leave the rest to these.
_GEMMA3: Mapping[str, object] = {
    **_COMMON,
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
_GEMMA3_CLASS = HFClass(
    "gemma3", _GEMMA3, "gelu_pytorch_tanh", window="periodic", reads_attention_bias=True
)
CLASSES: Mapping[str, HFClass] = {
    "LlamaForCausalLM": HFClass(
        "llama",
        {**_COMMON, "max_position_embeddings": 2048},
        reads_attention_bias=True,
    ),
    "MistralForCausalLM": HFClass("llama", _MISTRAL, window="everywhere"),
    "Qwen2ForCausalLM": HFClass("qwen2", _QWEN, window="last", has_qkv_bias=True),
    "Qwen3ForCausalLM": HFClass(
        "qwen3", {**_QWEN, "head_dim": 128}, window="last", reads_attention_bias=True
    ),
    "Gemma3ForCausalLM": _GEMMA3_CLASS,
    WITH_VISION: _GEMMA3_CLASS,
}


class Settings:
    """Typed look-ups in config.json, with the class's defaults. Every refusal names its key."""

    def __init__(self, config: Mapping[str, object], defaults: Mapping[str, object]) -> None:
        self.config = config
        self._defaults = defaults

    def value(self, key: str) -> object:
        return self.config.get(key, self._defaults.get(key, MISSING))

    def is_given(self, key: str) -> bool:
        value = self.value(key)
        return value is not None and value is not MISSING

    def integer(self, key: str) -> int:
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise should_be(key, "a positive integer", value)
        return value

    def number(self, key: str) -> float:
        value = self.value(key)
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
        if not 0 < number < math.inf:
            raise should_be(key, "a positive number", value)
        return float(number)

    def flag(self, key: str) -> bool:
        value = self.value(key)
        if not isinstance(value, bool):
            raise should_be(key, "true or false", value)
        return value


def should_be(key: str, what: str, value: object) -> ModelFileError:
    found = "missing" if value is MISSING else f"{value!r:.80}"
    return ModelFileError(f"config.json: {key} should be {what} and is {found}")
