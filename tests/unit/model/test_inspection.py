"""What is told of a model file, against what the loader and the kernels do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from gguf import GGUFWriter

from benchmarks.toy_gguf import LinearType, build_toy_model
from specd.errors import ModelFileError
from specd.model.arch import config_from_gguf
from specd.model.blocks import dequantise
from specd.model.embedding import DenseEmbedding
from specd.model.formats import WeightFormat
from specd.model.gguf_file import GGUFFile
from specd.model.inspection import Inspection, groups, inspect
from specd.model.measuring import Deviation, MeasuringLoader
from specd.model.opening import open_model
from specd.model.weights import ModelWeights, load_weights, read_weights

CONTEXT = 100
CHOICES: tuple[WeightFormat, ...] = get_args(WeightFormat)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "toy.gguf"


def looked_at(
    path: Path,
    weights: WeightFormat = "auto",
    *,
    linear: LinearType = "Q4_1",
    embed: LinearType = "Q8_0",
    tied: bool = True,
) -> Inspection:
    build_toy_model(path, linear_type=linear, embed_type=embed, tied=tied)
    found = inspect(path, weights, CONTEXT)
    assert found.problem is None
    return found


def deviation_of(found: Inspection, name: str, use: str = "layer") -> Deviation:
    (one,) = [c for c in found.conversions if (c.tensor.name, c.use) == (name, use)]
    return one.deviation


def loaded(path: Path, weights: WeightFormat) -> ModelWeights:
    source = open_model(path)
    return load_weights(source, config_from_gguf(source.metadata), weights, strict=True)


@pytest.mark.parametrize("linear", ["Q4_1", "Q5_0", "F16"])
@pytest.mark.parametrize("weights", CHOICES)
def test_formats_and_bytes_are_those_of_the_loader(
    path: Path, weights: WeightFormat, linear: LinearType
) -> None:
    found = looked_at(path, weights, linear=linear)
    made = loaded(path, weights)
    assert found.step is not None
    norms = sum(norm.nbytes for layer in made.layers for norm in layer.vectors())
    assert found.step.layers == sum(linear.bytes for linear in made.linears()[:-1]) + norms
    assert found.step.head == made.head.bytes + made.final_norm.nbytes
    formats = {one.format for one in found.conversions if one.use in {"layer", "head"}}
    assert formats == {linear.format for linear in made.linears()}


def test_kv_of_a_step_is_that_of_the_context(path: Path) -> None:
    found = looked_at(path)
    assert found.step is not None and found.config is not None
    per_token = 2 * found.config.num_layers * found.config.num_kv_heads * found.config.head_dim
    assert found.step.kv == 2 * per_token * CONTEXT  # bf16
    assert found.step.total == found.step.layers + found.step.head + found.step.kv


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("embed", ["Q8_0", "Q4_1", "F32"])
@pytest.mark.parametrize("weights", CHOICES)
def test_memory_adds_up_to_what_the_loader_holds(
    path: Path, weights: WeightFormat, embed: LinearType, tied: bool
) -> None:
    found = looked_at(path, weights, embed=embed, tied=tied)
    made = loaded(path, weights)
    if tied and isinstance(made.embedding, DenseEmbedding):
        assert made.embedding.bytes == made.head.bytes  # one memory for both
        assert sum(one.memory_bytes for one in found.conversions) == bytes_of(made)
    else:
        wanted = bytes_of(made) + made.embedding.bytes
        assert sum(one.memory_bytes for one in found.conversions) == wanted


def bytes_of(made: ModelWeights) -> int:
    """All but the embedding."""
    vectors = [vector for layer in made.layers for vector in layer.vectors()]
    linears = sum(linear.bytes for linear in made.linears())
    return linears + sum(vector.nbytes for vector in [*vectors, made.final_norm])


def test_biases_are_measured_and_counted(path: Path) -> None:
    build_toy_model(path, architecture="qwen2", linear_type="Q4_1", tied=False)
    found = inspect(path, "auto", CONTEXT)
    biases = [one for one in found.conversions if one.use == "bias"]
    assert len(biases) == 3 * 2 and {one.format for one in biases} == {"bf16"}
    assert all(0 < one.deviation.relative_rms < 2**-8 for one in biases)
    made = loaded(path, "auto")
    wanted = bytes_of(made) + made.embedding.bytes
    assert sum(one.memory_bytes for one in found.conversions) == wanted


def test_full_precision_is_exact(path: Path) -> None:
    assert all(one.deviation.relative_rms == 0 for one in looked_at(path, "fp32").conversions)


def test_the_error_of_bf16_is_that_of_its_rounding(path: Path) -> None:
    found = looked_at(path, "bf16")
    for name in ("blk.1.attn_q.weight", "blk.0.attn_k.weight", "blk.1.ffn_down.weight"):
        exact = dequantise(GGUFFile.open(path).tensors[name]).double()
        error = exact.bfloat16().double() - exact
        deviation = deviation_of(found, name)
        expected = float(error.square().mean().sqrt() / exact.square().mean().sqrt())
        assert deviation.relative_rms == pytest.approx(expected)
        assert deviation.max_abs == float(error.abs().max())


def test_the_error_of_int4_is_that_of_scales_rounded_to_bf16(path: Path) -> None:
    deviation = deviation_of(looked_at(path), "blk.0.attn_q.weight")
    assert 1e-4 < deviation.relative_rms < 4e-3


def test_the_errors_of_new_blocks_are_those_of_fewer_bits(path: Path) -> None:
    """Weights that the file has in full, of a normal distribution."""
    rms = {
        weights: deviation_of(
            looked_at(path, weights, linear="F32", embed="F32"), "blk.0.ffn_up.weight"
        ).relative_rms
        for weights in CHOICES
    }
    assert rms["fp32"] == 0
    assert rms["auto"] == rms["bf16"] == pytest.approx(0.00166, rel=0.05)
    assert rms["int8"] == pytest.approx(0.0056, rel=0.1)  # Q8_0, then bf16
    assert rms["int4"] == pytest.approx(0.0735, rel=0.05)


@pytest.mark.parametrize("weights", CHOICES)
def test_errors_are_those_of_the_values_that_the_loader_makes(
    path: Path, weights: WeightFormat
) -> None:
    found = looked_at(path, weights, linear="F16", embed="F16", tied=False)
    made = loaded(path, weights)
    down, name = made.layers[1].ffn_down, "blk.1.ffn_down.weight"
    exact = dequantise(open_model(path).tensors[name]).double()
    values = down(torch.eye(exact.shape[1], dtype=made.dtype)).double().T
    expected = float((values - exact).norm() / exact.norm())
    # Results of a layer are rounded to bf16 once more, which its weights are not.
    assert deviation_of(found, name).relative_rms == pytest.approx(expected, rel=2e-3)


def test_a_head_that_is_the_embedding_has_its_error_and_no_memory(path: Path) -> None:
    found = looked_at(path)
    (head,) = [one for one in found.conversions if one.use == "head"]
    assert head.memory_bytes == 0 and head.is_second
    assert head.deviation == deviation_of(found, "token_embd.weight", "embedding")
    assert head.deviation.relative_rms > 0


def test_kept_blocks_are_named_and_exact_where_nothing_is_rounded(path: Path) -> None:
    found = looked_at(path, "fp32", embed="Q5_1", tied=False)
    (embedding,) = [one for one in found.conversions if one.use == "embedding"]
    assert embedding.format == "Q5_1" and embedding.deviation.max_abs == 0
    assert embedding.memory_bytes == embedding.tensor.data.nbytes


def test_parts_of_several_types_are_told_apart(path: Path) -> None:
    """A file with queries in 4 bits and values in 8 is measured tensor by tensor."""
    build_toy_model(path, linear_type="Q4_1", embed_type="Q8_0")
    source = open_model(path)
    other = path.with_name("other.gguf")
    build_toy_model(other, linear_type="Q8_0", embed_type="Q8_0")
    value = "blk.0.attn_v.weight"
    tensors = {**source.tensors, value: open_model(other).tensors[value]}
    loader = MeasuringLoader(
        replace(source, tensors=tensors), config_from_gguf(source.metadata), "auto"
    )
    made = read_weights(loader, config_from_gguf(source.metadata), lambda done, total: None)
    assert made.layers[0].qkv.format == "int4+bf16"
    formats = {one.tensor.name: (one.tensor.type_name, one.format) for one in loader.conversions}
    assert formats[value] == ("Q8_0", "bf16")
    assert formats["blk.0.attn_k.weight"] == ("Q4_1", "int4")
    assert all(0 < one.deviation.relative_rms < 4e-3 for one in loader.conversions
               if one.use == "layer")  # fmt: skip


def test_an_exact_conversion_to_fewer_bits_is_said_to_be_exact(path: Path) -> None:
    """Weights of a file in bf16 stay what they are."""
    found = deviation_of(looked_at(path, "bf16", linear="BF16"), "blk.0.ffn_up.weight")
    assert (found.relative_rms, found.max_abs) == (0, 0)


def test_groups_count_every_tensor_and_every_byte_once(path: Path) -> None:
    found = looked_at(path)
    once = [group for group in groups(found) if not group.is_second]
    assert sum(group.num_tensors for group in once) == len(found.tensors)
    assert sum(group.file_bytes for group in once) == sum(t.data.nbytes for t in found.tensors)
    assert {group.use for group in groups(found) if group.is_second} == {"head"}


def test_an_untied_head_is_its_own_tensor(path: Path) -> None:
    found = looked_at(path, tied=False)
    assert not any(one.is_second for one in found.conversions)
    assert deviation_of(found, "output.weight", "head").relative_rms > 0


def test_nan_in_a_file_is_nan_in_the_error(path: Path) -> None:
    build_toy_model(path, tied=False, nan_rows=[5])
    found = inspect(path, "bf16", CONTEXT)
    embedding = deviation_of(found, "token_embd.weight", "embedding")
    assert str(embedding.max_abs) == str((embedding + Deviation()).max_abs) == "nan"
    assert deviation_of(found, "output.weight", "head").relative_rms > 0


def test_a_context_beyond_the_model_is_refused(path: Path) -> None:
    build_toy_model(path, context_length=64)
    with pytest.raises(ModelFileError, match="a context of 65 positions is more than the 64"):
        inspect(path, "int4", 65)


def test_of_an_unknown_architecture_is_told_what_the_file_says(path: Path) -> None:
    writer = GGUFWriter(path, "mamba")
    writer.add_block_count(7)
    writer.add_tensor("any", torch.zeros(4, 32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = inspect(path, "int4", CONTEXT)
    assert found.problem is not None and "architecture 'mamba' is not supported" in found.problem
    assert found.numbers == {"block_count": 7}
    assert [(group.block_type, group.num_tensors, group.file_bytes) for group in groups(found)] == [
        ("F32", 1, 512)
    ]
    assert (found.step, found.tokenizer, found.conversions) == (None, None, [])
