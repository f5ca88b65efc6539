"""config.json as metadata: old and new places of settings, defaults, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from specd.errors import ModelFileError
from specd.model.arch import ModelConfig, config_from_gguf
from specd.model.hf_classes import CLASSES
from specd.model.hf_config import read_config
from specd.model.hf_names import map_names
from tests.support.toy_folder import CONFIGS, NUM_LAYERS, SIZES, WITH_VISION

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 5}
LAST = (0,) * 5 + (64,) * 2
FULL, LOCAL = "full_attention", "sliding_attention"


def read(class_name: str, **settings: Any) -> dict[str, object]:
    """The metadata of a toy's config.json with these settings."""
    config = {"architectures": [class_name], **SIZES, **settings}
    return dict(read_config(config, "toy").metadata)


def served(class_name: str, **settings: Any) -> ModelConfig:
    return config_from_gguf(read(class_name, **settings))


def refusal(class_name: str, **settings: Any) -> str:
    with pytest.raises(ModelFileError) as caught:
        served(class_name, **settings)
    message = str(caught.value)
    assert message.startswith("config.json: ")
    assert "\n" not in message and len(message) < 300
    return message


def test_the_toys_are_of_every_class_that_is_served() -> None:
    assert {*CONFIGS, WITH_VISION} == set(CLASSES)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, {"freq_base": 1e4}),
        ({"rope_theta": 5e5, "rope_scaling": None}, {"freq_base": 5e5}),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "default"}}, {"freq_base": 5e5}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}}, {"freq_base": 7e4}),
        ({"rope_theta": 5, "rope_parameters": {"rope_theta": 7e4}}, {"freq_base": 7e4}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}},
            {"freq_base": 1e4, "scaling.type": "linear", "scaling.factor": 2.0},
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 3e5}},
            {"freq_base": 3e5, "scaling.type": "linear", "scaling.factor": 4.0},
        ),
    ],
)
def test_old_and_new_places_of_rotary_settings_are_read(
    settings: dict[str, Any], found: dict[str, object]
) -> None:
    prefix = "llama.rope."
    metadata = read("LlamaForCausalLM", **settings)
    told = {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}
    assert told == {"dimension_count": 32, **found}


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3},
        {"rope_parameters": {"rope_theta": 5e5, **LLAMA3}},
    ],
)
def test_the_scaling_of_llama_3_has_all_its_numbers(settings: dict[str, Any]) -> None:
    metadata = read("LlamaForCausalLM", **settings)
    prefix = "llama.rope.scaling."
    assert metadata["llama.rope.freq_base"] == 5e5
    assert {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)} == {
        "type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_context_length": 128,
    }


def test_the_original_length_is_looked_for_where_transformers_does() -> None:
    key = "llama.rope.scaling.original_context_length"
    bare = {name: value for name, value in LLAMA3.items() if not name.startswith("original")}
    outside = {"rope_scaling": LLAMA3, "original_max_position_embeddings": 256}
    assert read("LlamaForCausalLM", **outside)[key] == 256
    assert read("LlamaForCausalLM", rope_scaling=bare)[key] == 512


@pytest.mark.parametrize(
    "settings",
    [
        {
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
                LOCAL: {"rope_type": "default", "rope_theta": 2e4},
            }
        },
        {
            "rope_theta": 2e6,
            "rope_local_base_freq": 2e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ],
)
def test_gemma_has_a_base_per_kind_of_layer(settings: dict[str, Any]) -> None:
    metadata = read("Gemma3ForCausalLM", **settings)
    assert metadata["gemma3.rope.freq_base"] == 2e6
    assert metadata["gemma3.rope.freq_base_swa"] == 2e4
    full, local = served("Gemma3ForCausalLM", **settings).ropes
    assert (full.base, set(full.divisors)) == (2e6, {8.0})
    assert (local.base, local.divisors) == (2e4, ())


def test_gemmas_own_sparse_settings_are_filled_with_the_defaults_of_its_class() -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = read_config({"architectures": [WITH_VISION], "text_config": text}, "gemma-3-4b-it")
    known = config_from_gguf(config.metadata)
    assert (known.num_heads, known.num_kv_heads, known.head_dim) == (8, 4, 256)
    assert (known.vocab_size, known.context_length, config.is_tied) == (262_208, 131_072, True)
    whole = [place for place, window in enumerate(known.windows) if not window]
    assert whole == [5, 11, 17, 23, 29]
    assert {rope.base for rope in known.ropes} == {1e6, 1e4}
    assert known.attention_scale == 1 / 16


@pytest.mark.parametrize(
    ("class_name", "settings", "windows"),
    [
        ("LlamaForCausalLM", {"sliding_window": 64}, (0,) * 7),  # as in transformers
        ("MistralForCausalLM", {"sliding_window": 64}, (64,) * 7),
        ("MistralForCausalLM", {"sliding_window": None}, (0,) * 7),
        ("Qwen2ForCausalLM", {"sliding_window": 64}, (0,) * 7),
        ("Qwen2ForCausalLM", SLIDING, LAST),
        ("Qwen3ForCausalLM", SLIDING, LAST),
        ("Qwen3ForCausalLM", {**SLIDING, "sliding_window": None}, (0,) * 7),
        ("Qwen3ForCausalLM", {**SLIDING, "layer_types": [LOCAL, *[FULL] * 6]}, (64, *[0] * 6)),
        ("Gemma3ForCausalLM", {"sliding_window": 64}, (*[64] * 5, 0, 64)),
        ("Gemma3ForCausalLM", {"sliding_window": 64, "sliding_window_pattern": 9}, (64,) * 7),
        ("Gemma3ForCausalLM", {"layer_types": [FULL] * 7}, (0,) * 7),
    ],
)  # fmt: skip
def test_the_layers_slide_that_slide_in_transformers(
    class_name: str, settings: dict[str, Any], windows: tuple[int, ...]
) -> None:
    assert served(class_name, **settings).windows == windows


def test_what_a_config_does_not_say_is_what_its_class_says() -> None:
    said = {key: value for key, value in SIZES.items() if "head" not in key}
    settings = {"architectures": ["Qwen3ForCausalLM"], **said, "num_attention_heads": 32}
    config = read_config(settings, "toy")
    assert config.metadata["qwen3.attention.head_count_kv"] == 32
    assert config.metadata["qwen3.attention.key_length"] == 128
    assert not config.is_tied and not config.biases


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"architectures": ["GPTNeoXForCausalLM"]}, "'GPTNeoXForCausalLM' is not supported"),
        ({"architectures": None}, "architectures should be a list"),
        ({"architectures": [["x"]]}, "architectures should be a list"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised with 'awq'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised with 'fp8'"),
        ({"quantization_config": {}}, "quantised with None"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"attention_bias": "yes"}, "attention_bias should be true or false"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings should be true or false"),
        ({"hidden_size": "64"}, "hidden_size should be a positive integer and is '64'"),
        ({"num_attention_heads": 0}, "num_attention_heads should be a positive integer"),
        ({"num_hidden_layers": 1 << 30}, "num_hidden_layers should be at most 1024"),
        ({"vocab_size": None}, "vocab_size should be a positive integer and is None"),
        ({"rms_norm_eps": 0}, "rms_norm_eps should be a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps should be a positive number"),
        ({"rope_theta": [1]}, "rope_theta should be a positive number"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "the type 'yarn' are not"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "the type 'dynamic' are not"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "the type 'longrope' are not"),
        ({"rope_scaling": {"type": ["linear"]}}, "are not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor should be a positive number"),
        ({"rope_scaling": {"mrope_section": [1]}}, "mrope_section of rope_scaling"),
        ({"rope_scaling": "linear"}, "rope_scaling should be an object"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is not"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused_by_name(
    settings: dict[str, Any], words: str
) -> None:
    assert words in refusal("LlamaForCausalLM", **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not supported"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not supported"),
        ({"layer_types": [FULL]}, "layer_types should be a list of 7 kinds"),
        ({"layer_types": ["chunked_attention"] * 7}, "'chunked_attention'"),
        ({"layer_types": [[FULL]] * 7}, "layer_types should be full_attention or"),
        ({"sliding_window": None}, "sliding_window should be a positive integer"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern should be a positive"),
        ({"rope_parameters": {"rope_theta": 1.0}}, "rope_parameters has 'rope_theta'"),
        ({"rope_parameters": {LOCAL: {"type": "linear", "factor": 2}}}, "of sliding layers"),
        ({"hidden_activation": "silu"}, "hidden_activation 'silu'"),
        ({"query_pre_attn_scalar": -1}, "query_pre_attn_scalar should be a positive number"),
    ],
)
def test_a_setting_of_gemma_that_cannot_be_honoured_is_refused_by_name(
    settings: dict[str, Any], words: str
) -> None:
    assert words in refusal("Gemma3ForCausalLM", **settings)


def test_sliding_layers_of_qwen_without_a_window_are_refused() -> None:
    message = refusal("Qwen2ForCausalLM", layer_types=[LOCAL] * 7)
    assert "layer_types has sliding layers without a window" in message


def test_a_quantised_text_model_beside_a_vision_tower_is_refused() -> None:
    text = {**SIZES, "quantization_config": {"quant_method": "gptq"}}
    config = {"architectures": [WITH_VISION], "text_config": text}
    with pytest.raises(ModelFileError, match="quantised with 'gptq'"):
        read_config(config, "toy")


def names_of(settings: dict[str, Any]) -> list[str]:
    """The names of all tensors of such a checkpoint."""
    parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    parts += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    parts += ["input_layernorm", "post_attention_layernorm"]
    layers = range(settings["num_hidden_layers"])
    around = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    return around + [f"model.layers.{layer}.{part}.weight" for layer in layers for part in parts]


@pytest.mark.parametrize(
    ("num_layers", "words"),
    [
        (NUM_LAYERS + 1, "the tensor model.layers.7.self_attn.q_proj.weight is missing"),
        (NUM_LAYERS - 1, r"the tensor model.layers.6.\S+ has no place in a LlamaForCausalLM"),
    ],
)
def test_a_number_of_layers_that_the_tensors_do_not_have_is_refused(
    num_layers: int, words: str
) -> None:
    settings = {"architectures": ["LlamaForCausalLM"], **SIZES}
    names = names_of(settings)
    config = read_config({**settings, "num_hidden_layers": num_layers}, "toy")
    with pytest.raises(ModelFileError) as caught:
        map_names(names, config)
    assert re.search(words, str(caught.value))


def test_a_tensor_under_two_names_is_refused() -> None:
    config = read_config({"architectures": [WITH_VISION], "text_config": dict(SIZES)}, "toy")
    names = ["language_model.model.norm.weight", "model.language_model.norm.weight"]
    with pytest.raises(ModelFileError, match="are the same tensor twice"):
        map_names(names, config)
