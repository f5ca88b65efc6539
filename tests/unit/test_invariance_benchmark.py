"""The benchmark of strict mode compares two modes of one model, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.invariance import Bench, Load, Times, loads, modes, relaxed
from benchmarks.prompts import Prompts
from benchmarks.toy_gguf import build_toy_model
from specd.device.assembly import DeviceSettings
from specd.device.boot import boot
from specd.device.eager import EagerRunner
from specd.device.texts import Feeder, Text, differing
from specd.model.formats import Invariance, WeightFormat
from specd.model.linear import Bf16Linear, Fp32Linear, Int4Linear, Linear, SplitLinear
from tests.unit.device.texts import CORE_KERNELS, load_core, load_runner, torch_threads


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    build_toy_model(path, linear_type="Q4_1", embed_type="Q8_0", layers=1)
    return path


def parts(linear: Linear) -> list[Linear]:
    return list(linear.parts) if isinstance(linear, SplitLinear) else [linear]


@pytest.mark.parametrize("weights", ["fp32", "bf16", "auto"])
def test_the_modes_share_every_tensor_and_differ_in_the_rules(
    toy: Path, weights: WeightFormat
) -> None:
    runner = load_runner(toy, weights)
    found = modes(runner, by_rule=True)
    assert found["strict"] is runner
    strict, twin = runner.decoder.weights, relaxed(runner.decoder.weights)
    for one, other in zip(strict.linears(), twin.linears(), strict=True):
        for ours, theirs in zip(parts(one), parts(other), strict=True):
            if isinstance(ours, Int4Linear):
                assert theirs is ours
                continue
            assert isinstance(ours, Fp32Linear | Bf16Linear)
            assert isinstance(theirs, type(ours)) and theirs.weight() is ours.weight()
            assert vars(theirs) != vars(ours), "the twin is as strict"
    attention = {name: one.strict for name, one in found.items() if isinstance(one, EagerRunner)}
    assert attention == {
        "strict": True,
        "relaxed": False,
        "strict but for linear layers": True,
        "strict but for attention": False,
    }


@pytest.mark.skipif(not CORE_KERNELS, reason="the core was not built, or has nothing for this CPU")
def test_the_core_has_one_mode(toy: Path) -> None:
    runner = load_core(toy, "auto", CORE_KERNELS[0])
    assert modes(runner, by_rule=True) == {"strict": runner, "relaxed": runner}


@pytest.mark.skipif(not CORE_KERNELS, reason="the core was not built, or has nothing for this CPU")
def test_relaxed_changes_no_bit_of_what_the_core_computes(toy: Path) -> None:
    def text(invariance: Invariance) -> Text:
        booted = boot(DeviceSettings(toy, "auto", invariance, "auto", 1 << 24, 2, 64, 1))
        assert booted.invariance == invariance
        return Feeder(booted.runner).generate(range(3, 40), 12)

    strict, relaxed_ = text("strict"), text("relaxed")
    assert relaxed_.ids == strict.ids
    assert differing(relaxed_, strict) == 0


def test_every_mode_runs_every_step_of_every_load(toy: Path) -> None:
    everything = loads(3, 512)
    names = [load.name for load in everything]
    assert names == ["one stream behind 32", "drafts of 7 behind 32", "8 streams",
                     "a prompt of 512"]  # fmt: skip
    with torch_threads(1):
        runners = modes(load_runner(toy, "bf16", num_pages=200), by_rule=True)
        bench = Bench(runners, Prompts(tuple(range(3, 300))))
        for load in everything:
            times = Times(load)
            for number in range(2):
                bench.measure(load, times, number)
            assert set(times.rounds) == set(runners)
            for rounds in times.rounds.values():
                assert [len(steps) for steps in rounds] == [load.num_steps] * 2
                assert min(min(steps) for steps in rounds) > 0


def test_a_slow_step_in_one_round_moves_no_speed() -> None:
    load = Load("one", (32,), 1, 3)
    times = Times(load, {
        "strict": [[1.0, 2.0, 4.0], [1.0, 90.0, 4.0], [1.0, 2.0, 4.0]],
        "relaxed": [[1.0, 1.0, 1.5], [1.0, 1.0, 1.5], [50.0, 1.0, 1.5]],
    })  # fmt: skip
    assert times.total_s("strict") == 7.0
    assert times.total_s("relaxed") == 3.5
    assert times.ratios("strict", "relaxed")[0] == 0.5
    assert load.tokens == 3
    assert Load("drafts", (32,), 8, 3).tokens == 24
