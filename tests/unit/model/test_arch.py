"""Sizes of a model come from its metadata, and what cannot be run is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from specd.errors import ModelFileError
from specd.model.arch import ModelConfig, Rope, config_from_gguf

METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "general.name": "toy",
    "llama.block_count": 3,
    "llama.context_length": 512,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "llama.rope.freq_base": 100000.0,
    "llama.rope.dimension_count": 64,
    "llama.vocab_size": 49152,
}


LLAMA3: dict[str, object] = {
    "rope__scaling__type": "llama3",
    "rope__scaling__factor": 8.0,
    "rope__scaling__low_freq_factor": 1.0,
    "rope__scaling__high_freq_factor": 4.0,
    "rope__scaling__original_context_length": 8192,
}


def config(**changes: Any) -> ModelConfig:
    """Metadata with `llama.` keys changed, or left out where the value is None."""
    merged = METADATA | {f"llama.{key.replace('__', '.')}": value for key, value in changes.items()}
    return config_from_gguf({key: value for key, value in merged.items() if value is not None})


def refused(**changes: Any) -> str:
    with pytest.raises(ModelFileError) as refusal:
        config(**changes)
    return str(refusal.value)


def test_sizes_are_read() -> None:
    found = config()
    assert (found.name, found.architecture) == ("toy", "llama")
    assert (found.num_layers, found.hidden_size, found.ffn_size) == (3, 576, 1536)
    assert (found.num_heads, found.num_kv_heads, found.head_dim) == (9, 3, 64)
    assert (found.vocab_size, found.context_length) == (49152, 512)
    assert (found.ropes, found.norm_eps) == ((Rope(100000.0),), 1e-6)


def test_derived_sizes_follow() -> None:
    found = config()
    assert (found.group_size, found.fused_heads, found.kv_width) == (3, 15, 384)


def test_what_a_file_leaves_out_has_its_usual_value() -> None:
    found = config(
        attention__head_count_kv=None,
        rope__freq_base=None,
        rope__dimension_count=None,
    )
    assert (found.num_kv_heads, found.ropes) == (9, (Rope(10000.0),))
    assert (found.windows, found.layer_ropes) == ((0, 0, 0), (0, 0, 0))
    assert (found.attention_scale, found.embedding_scale) == (1 / 8, 1.0)


def test_the_epsilon_of_norms_is_not_guessed() -> None:
    with pytest.raises(ModelFileError, match="layer_norm_rms_epsilon"):
        config(attention__layer_norm_rms_epsilon=None)


def test_a_head_may_be_wider_than_its_share_of_the_hidden_size() -> None:
    found = config(attention__key_length=128, rope__dimension_count=128)
    assert found.head_dim == 128


def test_the_vocabulary_is_counted_where_no_size_is_given() -> None:
    merged = {key: value for key, value in METADATA.items() if key != "llama.vocab_size"}
    found = config_from_gguf(merged | {"tokenizer.ggml.tokens": ["a", "b", "c"]})
    assert found.vocab_size == 3
    with pytest.raises(ModelFileError, match="vocab_size"):
        config_from_gguf(merged)


@pytest.mark.parametrize("architecture", ["mamba", "gemma2", "LLAMA", "", 7, None])
def test_another_architecture_is_refused_with_what_is_served(architecture: object) -> None:
    with pytest.raises(ModelFileError) as refusal:
        config_from_gguf(METADATA | {"general.architecture": architecture})
    assert repr(architecture) in str(refusal.value)
    assert "llama, qwen2, qwen3, gemma3" in str(refusal.value)


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
    ],
)
@pytest.mark.parametrize("value", [None, 0, -1, 1 << 31, 2.0, "3", True, [3]])
def test_a_missing_or_absurd_size_is_refused_by_key(key: str, value: object) -> None:
    sentence = refused(**{key.replace(".", "__"): value})
    assert f"llama.{key}" in sentence and repr(value) in sentence


@pytest.mark.parametrize("key", ["rope.freq_base", "attention.layer_norm_rms_epsilon"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "1", True])
def test_an_absurd_number_is_refused_by_key(key: str, value: object) -> None:
    assert f"llama.{key}" in refused(**{key.replace(".", "__"): value})


@pytest.mark.parametrize(
    "changes",
    [
        {"attention__head_count_kv": 2},
        {"rope__dimension_count": 32},
        {"attention__key_length": 63, "rope__dimension_count": 63},
        {"attention__key_length": 2048, "rope__dimension_count": 2048},
        {"attention__value_length": 32},
    ],
    ids=str,
)
def test_heads_that_do_not_fit_together_are_refused(changes: dict[str, int]) -> None:
    assert "9 heads" in refused(**changes)


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("expert_count", 8, "mixture"),
        ("rope.scaling.type", "yarn", "rotary"),
        ("rope.scaling.type", "longrope", "rotary"),
        ("attn_logit_softcapping", 50.0, "soft caps"),
        ("final_logit_softcapping", 30.0, "soft caps"),
        ("attention.causal", False, "causal"),
        ("logit_scale", 0.0625, "scaled logits"),
        ("attention.sliding_window_pattern", 2, "sliding_window"),
    ],
)
def test_features_that_would_change_the_numbers_are_refused(
    key: str, value: object, word: str
) -> None:
    sentence = refused(**{key.replace(".", "__"): value})
    assert f"llama.{key}" in sentence and word in sentence and repr(value) in sentence


@pytest.mark.parametrize(
    ("key", "value"),
    [("expert_count", 0), ("final_logit_softcapping", 0.0), ("attention.causal", True),
     ("rope.scaling.type", "none"), ("attention.sliding_window", 0), ("tensor_data_layout", "x")],
)  # fmt: skip
def test_features_that_a_file_switches_off_change_nothing(key: str, value: object) -> None:
    assert config(**{key.replace(".", "__"): value}) == config()


def test_a_setting_that_nobody_knows_is_refused_by_key() -> None:
    assert "does not know: llama.rope.scale_linear" in refused(rope__scale_linear=4.0)


def test_sizes_whose_tables_would_fill_the_memory_are_refused() -> None:
    assert "a context of 2000000000 positions" in refused(context_length=2_000_000_000)
    assert "a model of 2000000000 layers" in refused(block_count=2_000_000_000)


def test_a_window_is_on_every_layer_unless_a_pattern_says_otherwise() -> None:
    found = config(attention__sliding_window=100)
    assert (found.windows, found.layer_ropes) == ((100,) * 3, (0,) * 3)
    for pattern, windows in (
        (0, (100, 100, 100)),
        (1, (0, 0, 0)),
        (2, (100, 0, 100)),
        ([True, False, False], (100, 0, 0)),
        ([0, 1, 1], (0, 100, 100)),
    ):
        changes = {"attention__sliding_window": 100, "attention__sliding_window_pattern": pattern}
        assert config(**changes).windows == windows


def test_a_window_as_long_as_the_context_is_none() -> None:
    assert config(attention__sliding_window=511).windows == (511,) * 3
    assert config(attention__sliding_window=512).windows == (0,) * 3


WINDOW = {"attention__sliding_window": 10}
PATTERN = "attention__sliding_window_pattern"


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("attention.sliding_window", {"attention__sliding_window": -1}),
        ("attention.sliding_window_pattern", WINDOW | {PATTERN: [True]}),
        ("attention.sliding_window_pattern", WINDOW | {PATTERN: [True, 2, True]}),
        ("attention.sliding_window_pattern", WINDOW | {PATTERN: "all"}),
        ("rope.scaling.type", {"rope__scaling__type": 7}),
        ("rope.scaling.factor", {"rope__scaling__type": "linear"}),
        ("rope.scaling.factor", {"rope__scaling__factor": 0.5}),
        ("rope.scaling.high_freq_factor", LLAMA3 | {"rope__scaling__high_freq_factor": None}),
        ("rope.scaling.low_freq_factor", LLAMA3 | {"rope__scaling__low_freq_factor": 4.0}),
        ("rope.freq_base", {"rope__freq_base": 1e-45}),
        ("attention.scale", {"attention__scale": 0.0}),
        ("rope.freq_base_swa", {"rope__freq_base_swa": 500.0}),
    ],
    ids=str,
)
def test_absurd_windows_and_scales_are_refused_by_key(key: str, changes: dict[str, Any]) -> None:
    assert f"llama.{key}" in refused(**changes)


def test_linear_scaling_divides_all_frequencies() -> None:
    scaled = Rope(100000.0, (4.0,) * 32)
    assert config(rope__scaling__type="linear", rope__scaling__factor=4.0).ropes == (scaled,)
    assert config(rope__scaling__factor=4.0).ropes == (scaled,)  # llama.cpp's default type


def test_llama3_scaling_keeps_short_wavelengths_and_divides_long_ones() -> None:
    (rope,) = config(**LLAMA3).ropes
    assert rope.divisors[0] == 1 and rope.divisors[-1] == 8
    assert list(rope.divisors) == sorted(rope.divisors)


def gemma(num_layers: int, **changes: Any) -> ModelConfig:
    own = {key.replace("llama", "gemma3"): value for key, value in METADATA.items()}
    named = {f"gemma3.{key.replace('__', '.')}": value for key, value in changes.items()}
    return config_from_gguf(
        own | {"general.architecture": "gemma3", "gemma3.block_count": num_layers} | named
    )


def test_every_sixth_layer_of_gemma_sees_all_and_has_the_scaled_rope() -> None:
    found = gemma(13, attention__sliding_window=64, rope__scaling__factor=8.0)
    assert found.windows == (64, 64, 64, 64, 64, 0) * 2 + (64,)
    assert found.layer_ropes == (1, 1, 1, 1, 1, 0) * 2 + (1,)
    assert found.ropes == (Rope(100000.0, (8.0,) * 32), Rope(10000.0))
    assert found.embedding_scale == 24.0


def test_a_gemma_without_a_window_has_one_rope() -> None:
    found = gemma(7)
    assert (set(found.windows), found.ropes) == ({0}, (Rope(100000.0),))


def test_local_layers_keep_their_rope_where_the_window_hides_nothing() -> None:
    found = gemma(6, attention__sliding_window=4096)
    assert (found.windows, found.layer_ropes) == ((0,) * 6, (1, 1, 1, 1, 1, 0))


def test_the_attention_scale_follows_the_head_or_what_the_model_says() -> None:
    assert config(attention__scale=0.25).attention_scale == 0.25
    assert gemma(61).attention_scale == 1 / 8
    # Gemma 3 27B, whose files do not tell: hidden size over heads, not the head's own size.
    wide = gemma(62, embedding_length=2304, attention__key_length=64)
    assert (wide.head_dim, wide.attention_scale) == (64, 1 / 16)
