"""What is told of a model file, against what the loader and the kernels do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter

from specd.errors import ModelFileError
from specd.model.arch import config_from_gguf
from specd.model.blocks import FourBit, dequantise, four_bit
from specd.model.formats import WeightFormat
from specd.model.gguf_file import GGUFFile
from specd.model.inspection import Inspection, groups, inspect
from specd.model.linear import Int4Linear, Int8Linear, int4_weight
from specd.model.measuring import Deviation
from specd.model.weights import load_weights
from tests.support.toy_gguf import LinearType, build_toy_model

CONTEXT = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "toy.gguf"


def looked_at(
    path: Path, weights: WeightFormat = "int4", *, linear: LinearType = "Q4_1", tied: bool = True
) -> Inspection:
    build_toy_model(path, linear_type=linear, embed_type="Q8_0", tied=tied)
    found = inspect(path, weights, CONTEXT)
    assert found.problem is None
    return found


def deviation_of(found: Inspection, name: str, use: str = "layer") -> Deviation:
    (one,) = [c for c in found.conversions if (c.tensor.name, c.use) == (name, use)]
    return one.deviation


@pytest.mark.parametrize("weights", ["int4", "bf16", "fp32"])
def test_formats_and_bytes_are_those_of_the_loader(path: Path, weights: WeightFormat) -> None:
    found = looked_at(path, weights)
    file = GGUFFile.open(path)
    config = config_from_gguf(file.metadata)
    loaded = load_weights(file, config, weights, strict=True)
    assert found.step is not None
    norms = 2 * config.num_layers * config.hidden_size * loaded.dtype.itemsize
    assert found.step.layers == sum(linear.bytes for linear in loaded.linears()[:-1]) + norms
    assert found.step.head == loaded.head.bytes + loaded.final_norm.nbytes
    formats = {one.format for one in found.conversions if one.use in {"layer", "head"}}
    assert formats == {linear.format for linear in loaded.linears()}


def test_kv_of_a_step_is_that_of_the_context(path: Path) -> None:
    found = looked_at(path)
    assert found.step is not None and found.config is not None
    per_token = 2 * found.config.num_layers * found.config.num_kv_heads * found.config.head_dim
    assert found.step.kv == 2 * per_token * CONTEXT  # bf16
    assert found.step.total == found.step.layers + found.step.head + found.step.kv


def test_memory_adds_up_to_what_the_loader_holds(path: Path) -> None:
    found = looked_at(path, "bf16")
    loaded = load_weights(GGUFFile.open(path), config_from_gguf(GGUFFile.open(path).metadata),
                          "bf16", strict=True)  # fmt: skip
    norms = [norm for layer in loaded.layers for norm in (layer.attn_norm, layer.ffn_norm)]
    held = sum(linear.bytes for linear in loaded.linears())  # the head is the embedding
    held += sum(norm.nbytes for norm in [*norms, loaded.final_norm])
    assert sum(one.memory_bytes for one in found.conversions) == held


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


def test_a_head_of_8_bits_has_an_error_of_its_own(path: Path) -> None:
    found = looked_at(path)
    head = deviation_of(found, "token_embd.weight", "head")
    embedding = deviation_of(found, "token_embd.weight", "embedding")
    assert head.relative_rms > embedding.relative_rms > 0


def test_an_exact_conversion_to_fewer_bits_is_said_to_be_exact(path: Path) -> None:
    """Weights of a file in bf16 stay what they are."""
    assert deviation_of(looked_at(path, "bf16", linear="BF16"), "blk.0.ffn_up.weight") == Deviation(
        0.0, pytest.approx(0, abs=1e9), 0.0
    )


def blocks() -> FourBit:
    generator = torch.Generator().manual_seed(1)
    quants = torch.randint(0, 16, (64, 96), generator=generator, dtype=torch.uint8)
    scale = torch.randn(64, 3, generator=generator).half().float()
    return FourBit(quants.numpy(), scale.numpy(), (scale * -7.3).half().float().numpy())


def test_int4_multiplies_by_what_it_says() -> None:
    made = Int4Linear(blocks())(torch.eye(96).bfloat16()).T
    assert torch.equal(made, int4_weight(blocks()).bfloat16())


def test_int8_multiplies_by_what_it_says() -> None:
    linear = Int8Linear.from_weight(torch.randn(64, 96, generator=torch.Generator().manual_seed(2)))
    assert torch.equal(linear(torch.eye(96).bfloat16()).T, linear.weight().bfloat16())


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


def test_four_bit_blocks_of_a_file_are_the_file_s_values(path: Path) -> None:
    """The reference that errors are measured against is exact where scales are."""
    build_toy_model(path, linear_type="Q4_0")
    tensor = GGUFFile.open(path).tensors["blk.0.ffn_up.weight"]
    packed = four_bit(tensor)
    assert packed is not None
    rounded = FourBit(
        packed.quants,
        torch.from_numpy(packed.scale).bfloat16().float().numpy(),
        torch.from_numpy(packed.scale).bfloat16().float().numpy() * -8,
    )
    assert torch.allclose(int4_weight(rounded), int4_weight(packed))
