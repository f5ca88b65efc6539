"""Reads config.json of a Hugging Face folder into GGUF metadata: sizes, positions, windows.

Knows what settings mean, and the two places where rotary ones lie: `rope_theta` with
`rope_scaling`, or `rope_parameters`. Knows nothing of tensors. Keys are those of llama.cpp's
converter. What a GGUF file rarely or never says has these:

    {arch}.attention.sliding_window           positions that a sliding layer sees, its own included
    {arch}.attention.sliding_window_pattern   one bool per layer, true for a sliding one
    {arch}.attention.scale                    what scores are multiplied by (Gemma 3)
    {arch}.rope.freq_base_swa                 rotary base of sliding layers (Gemma 3)
    {arch}.rope.scaling.type                  "linear" or "llama3"; of full layers alone in Gemma 3
    {arch}.rope.scaling.factor, .low_freq_factor, .high_freq_factor, .original_context_length

A key that transformers itself does not look at is not looked at here. Invariant: a setting that
changes the output is honoured or refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specd.errors import ModelFileError
from specd.model.hf_classes import CLASSES, MISSING, WITH_VISION, HFClass, Settings, should_be

if TYPE_CHECKING:  # a pull needs names of files from here, and neither numpy nor gguf
    from specd.model.gguf_file import Metadata

_ROPE_KEYS = {
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings", "partial_rotary_factor",
}  # fmt: skip
_ROPE_KINDS = ("default", "linear", "llama3")
_LAYER_KINDS = ("full_attention", "sliding_attention")
# Eight times those of the deepest model known.
_MAX_LAYERS = 1024
# Settings that change the output, with the values that change nothing.
_REFUSED: Mapping[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "use_bidirectional_attention": (None, False),
    "partial_rotary_factor": (None, 1),
    "mlp_bias": (None, False),
}


@dataclass(frozen=True, slots=True)
class FolderConfig:
    """What config.json says. biases: GGUF names of the layers' parts that have one."""

    class_name: str
    family: HFClass
    metadata: Metadata
    num_layers: int
    is_tied: bool
    biases: frozenset[str]


def read_config(config: Mapping[str, object], name: str) -> FolderConfig:
    """Read a whole config.json; `name` becomes the model's.

    Raises: ModelFileError where the class or a setting is not supported.
    """
    class_name, family = _class_of(config)
    _refuse_quantised(config)
    text = config
    if class_name == WITH_VISION:
        text = _object(config, "text_config")
        _refuse_quantised(text)
    settings = Settings(text, family.defaults)
    _refuse_settings(settings, family)
    num_layers = settings.integer("num_hidden_layers")
    if num_layers > _MAX_LAYERS:
        raise should_be("num_hidden_layers", f"at most {_MAX_LAYERS}", num_layers)
    metadata: dict[str, object] = {
        "general.architecture": family.architecture,
        "general.name": name,
    }
    parts = (_sizes(settings), _windows(settings, family), _rotary(settings, family))
    for part in parts:
        metadata |= {f"{family.architecture}.{key}": value for key, value in part.items()}
    # Beside a vision tower the outer object decides over the tie.
    tie = config.get("tie_word_embeddings")
    return FolderConfig(
        class_name=class_name,
        family=family,
        metadata=metadata,
        num_layers=num_layers,
        is_tied=tie if isinstance(tie, bool) else settings.flag("tie_word_embeddings"),
        biases=_biases(settings, family),
    )


def _class_of(config: Mapping[str, object]) -> tuple[str, HFClass]:
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise should_be("architectures", "a list with the name of one class", named)
    family = CLASSES.get(named[0])
    if family is None:
        raise ModelFileError(
            f"config.json: the class {named[0]!r} is not supported; "
            f"this version serves {', '.join(CLASSES)}"
        )
    return named[0], family


def _refuse_quantised(config: Mapping[str, object]) -> None:
    settings = config.get("quantization_config")
    if settings is not None:
        method = settings.get("quant_method") if isinstance(settings, dict) else settings
        raise ModelFileError(
            f"config.json: weights quantised with {method!r} are not supported; "
            "take the folder as it was before, or a GGUF file"
        )


def _refuse_settings(settings: Settings, family: HFClass) -> None:
    for key, harmless in _REFUSED.items():
        value = settings.config.get(key)
        if value not in harmless:
            raise ModelFileError(f"config.json: {key} {value!r:.80} is not supported")
    for key in ("hidden_act", "hidden_activation"):
        if settings.config.get(key, family.activation) != family.activation:
            raise ModelFileError(
                f"config.json: {key} {settings.config[key]!r:.80} is not supported for "
                f"{family.architecture}, which has {family.activation!r}"
            )


def _sizes(settings: Settings) -> dict[str, object]:
    hidden, heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
    given = settings.is_given
    kv_heads = settings.integer("num_key_value_heads") if given("num_key_value_heads") else heads
    head_dim = settings.integer("head_dim") if given("head_dim") else max(hidden // heads, 1)
    sizes: dict[str, object] = {
        "block_count": settings.integer("num_hidden_layers"),
        "context_length": settings.integer("max_position_embeddings"),
        "embedding_length": hidden,
        "feed_forward_length": settings.integer("intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": settings.number("rms_norm_eps"),
        "rope.dimension_count": head_dim,
        "vocab_size": settings.integer("vocab_size"),
    }
    if given("query_pre_attn_scalar"):
        sizes["attention.scale"] = settings.number("query_pre_attn_scalar") ** -0.5
    return sizes


def _windows(settings: Settings, family: HFClass) -> dict[str, object]:
    """Nothing where no layer slides."""
    slides = _sliding_layers(settings, family)
    if not any(slides):
        return {}
    window = settings.integer("sliding_window")
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": slides}


def _sliding_layers(settings: Settings, family: HFClass) -> list[bool]:
    num_layers = settings.integer("num_hidden_layers")
    if family.window == "none":
        return [False] * num_layers
    if family.window == "everywhere":
        return [settings.is_given("sliding_window")] * num_layers
    is_off = family.window == "last" and not (
        settings.flag("use_sliding_window") and settings.is_given("sliding_window")
    )
    if settings.config.get("layer_types") is not None:
        listed = _listed_layers(settings.config["layer_types"], num_layers)
        if is_off and any(listed):
            raise ModelFileError("config.json: layer_types has sliding layers without a window")
        return listed
    if is_off:
        return [False] * num_layers
    if family.window == "periodic":
        period = settings.integer("sliding_window_pattern")
        return [(layer + 1) % period != 0 for layer in range(num_layers)]
    first = settings.value("max_window_layers")
    if isinstance(first, bool) or not isinstance(first, int):
        raise should_be("max_window_layers", "an integer", first)
    return [layer >= first for layer in range(num_layers)]


def _listed_layers(listed: object, num_layers: int) -> list[bool]:
    if not isinstance(listed, list) or len(listed) != num_layers:
        raise should_be("layer_types", f"a list of {num_layers} kinds", listed)
    for kind in listed:
        if kind not in _LAYER_KINDS:
            raise should_be("an entry of layer_types", " or ".join(_LAYER_KINDS), kind)
    return [kind == "sliding_attention" for kind in listed]


def _rotary(settings: Settings, family: HFClass) -> dict[str, object]:
    if family.architecture != "gemma3":
        rope = _rope_object(settings.config, "rope_scaling") or _rope_object(
            settings.config, "rope_parameters"
        )
        return _one_rotary(settings, rope, "rope_theta")
    nested = _object_or_empty(settings.config, "rope_parameters")
    if unknown := sorted(nested.keys() - set(_LAYER_KINDS)):
        raise ModelFileError(
            f"config.json: rope_parameters has {unknown[0]!r}; "
            "in Gemma 3 it has full_attention and sliding_attention"
        )
    full = _rope_object(nested, "full_attention") | _rope_object(settings.config, "rope_scaling")
    local = _one_rotary(settings, _rope_object(nested, "sliding_attention"), "rope_local_base_freq")
    if len(local) > 1:
        raise ModelFileError(
            "config.json: scaled rotary positions of sliding layers are not supported"
        )
    return _one_rotary(settings, full, "rope_theta") | {
        "rope.freq_base_swa": local["rope.freq_base"]
    }


def _one_rotary(settings: Settings, rope: Mapping[str, object], base_key: str) -> dict[str, object]:
    """Base and scaling of one kind of layer; a base in `rope` wins over one beside it."""
    values = Settings(rope, {"rope_theta": settings.value(base_key)})
    found: dict[str, object] = {"rope.freq_base": values.number("rope_theta")}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _ROPE_KINDS:
        raise ModelFileError(
            f"config.json: rotary positions of the type {kind!r:.80} are not supported; "
            f"this version knows {', '.join(_ROPE_KINDS)}"
        )
    if kind == "default":
        return found
    found |= {"rope.scaling.type": kind, "rope.scaling.factor": values.number("factor")}
    if kind == "llama3":
        found |= {
            "rope.scaling.low_freq_factor": values.number("low_freq_factor"),
            "rope.scaling.high_freq_factor": values.number("high_freq_factor"),
            "rope.scaling.original_context_length": _original_length(settings, values),
        }
    return found


def _original_length(settings: Settings, rope: Settings) -> int:
    """As transformers looks for it."""
    for around in (settings, rope):
        if "original_max_position_embeddings" in around.config:
            return around.integer("original_max_position_embeddings")
    return settings.integer("max_position_embeddings")


def _rope_object(config: Mapping[str, object], key: str) -> dict[str, object]:
    rope = _object_or_empty(config, key)
    if unknown := sorted(rope.keys() - _ROPE_KEYS):
        raise ModelFileError(f"config.json: {unknown[0]} of {key} is not supported")
    if rope.get("partial_rotary_factor") not in (None, 1):
        raise ModelFileError("config.json: partial_rotary_factor is not supported")
    return rope


def _object(config: Mapping[str, object], key: str) -> dict[str, object]:
    value = config.get(key, MISSING)
    if not isinstance(value, dict):
        raise should_be(key, "an object", value)
    return value


def _object_or_empty(config: Mapping[str, object], key: str) -> dict[str, object]:
    return {} if config.get(key) is None else _object(config, key)


def _biases(settings: Settings, family: HFClass) -> frozenset[str]:
    found: set[str] = set()
    if family.has_qkv_bias:
        found |= {"attn_q", "attn_k", "attn_v"}
    if family.reads_attention_bias and settings.flag("attention_bias"):
        found |= {"attn_q", "attn_k", "attn_v", "attn_output"}
    return frozenset(found)
