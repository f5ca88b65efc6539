"""Sizes of a model come from its metadata, and what cannot be run is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from specd.errors import ModelFileError
from specd.model.arch import ModelConfig, config_from_gguf

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
    assert (found.rope_base, found.norm_eps) == (100000.0, 1e-6)


def test_derived_sizes_follow() -> None:
    found = config()
    assert (found.group_size, found.fused_heads, found.kv_width) == (3, 15, 384)


def test_what_a_file_leaves_out_has_its_usual_value() -> None:
    found = config(
        attention__head_count_kv=None,
        rope__freq_base=None,
        rope__dimension_count=None,
        attention__layer_norm_rms_epsilon=None,
    )
    assert (found.num_kv_heads, found.rope_base, found.norm_eps) == (9, 10000.0, 1e-5)


def test_a_head_may_be_wider_than_its_share_of_the_hidden_size() -> None:
    found = config(attention__key_length=128, rope__dimension_count=128)
    assert found.head_dim == 128


def test_the_vocabulary_is_counted_where_no_size_is_given() -> None:
    merged = {key: value for key, value in METADATA.items() if key != "llama.vocab_size"}
    found = config_from_gguf(merged | {"tokenizer.ggml.tokens": ["a", "b", "c"]})
    assert found.vocab_size == 3
    with pytest.raises(ModelFileError, match="vocab_size"):
        config_from_gguf(merged)


@pytest.mark.parametrize("architecture", ["mamba", "qwen2", "LLAMA", "", 7, None])
def test_another_architecture_is_refused_with_what_is_served(architecture: object) -> None:
    with pytest.raises(ModelFileError) as refusal:
        config_from_gguf(METADATA | {"general.architecture": architecture})
    assert repr(architecture) in str(refusal.value) and "llama" in str(refusal.value)


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
    ],
    ids=str,
)
def test_heads_that_do_not_fit_together_are_refused(changes: dict[str, int]) -> None:
    assert "9 heads" in refused(**changes)


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [("expert_count", 8, "mixture"), ("rope.scaling.type", "yarn", "rotary")],
)
def test_features_that_would_change_the_numbers_are_refused(
    key: str, value: object, word: str
) -> None:
    sentence = refused(**{key.replace(".", "__"): value})
    assert f"llama.{key}" in sentence and word in sentence


def test_a_context_whose_rotary_tables_would_fill_the_memory_is_refused() -> None:
    assert "a context of 2000000000 positions" in refused(context_length=2_000_000_000)
