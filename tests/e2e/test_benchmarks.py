"""Whole runs of the benchmarks on a toy model, with a fake of a peer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.worker import ROOT
from benchmarks.toy_gguf import build_toy_model
from tests.support import fake_llama_server


@pytest.fixture(scope="module")
def fake_binary(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fake_llama_server.program(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    build_toy_model(path, layers=1, context_length=256)
    return path


def benchmark(name: str, *flags: str) -> tuple[int, dict[str, Any], str]:
    """Run one as people do: status, the JSON line, all that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout


def test_a_whole_decode_run_has_all_figures(toy: Path, fake_binary: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra bench")
    picture = tmp_path / "decode.png"
    status, found, shown = benchmark(
        *("decode", "--model", str(toy), "--threads", "1", "--prompts", "6", "20"),
        *("--tokens", "8", "--rounds", "2", "--llama-server", fake_binary),
        *("--plot", str(picture)),
    )
    assert status == 0, found["problem"]
    states = {one["name"]: one["state"] for one in found["contenders"]}
    assert states["specd"] == states["specd, ngram"] == states["llama-server, ngram"] == "ran"
    assert states["llama-cpp-python"] == states["vllm, bf16"] == "absent"
    keys = [(one["prompt_tokens"], one["contender"]) for one in found["results"]]
    ran = [name for name, state in states.items() if state == "ran"]
    assert keys == [(length, name) for length in (6, 20) for name in ran]
    for one in found["results"]:
        for name in ("prefill", "decode", "total"):
            assert one[f"{name}_tokens_per_s"] > 0
            assert one[f"reference_{name}_ratio"] > 0
    drafted = found["results"][1]
    assert drafted["same_tokens_as_reference"] == 1.0
    (cost,) = found["step_costs"]
    assert list(cost["ms"]) == ["1", "4", "8", "32"] and cost["ratios"]["1"] == 1.0
    assert found["path"]["gap_ms"] > 0 and found["path"]["step_ms"] > 0
    bounds = found["roofline"]["bounds"]
    assert [one["prompt_tokens"] for one in bounds] == [6, 20]
    assert bounds[0]["file_tokens_per_s"] > bounds[1]["file_tokens_per_s"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "absent: llama-cpp-python (--llama-python not given)" in shown


@pytest.fixture(scope="module")
def serve_run(toy: Path, fake_binary: str) -> tuple[int, dict[str, Any], str]:
    """Three streams; one of the peers fails."""
    return benchmark(
        *("serve", "--model", str(toy), "--threads", "1", "--prompts", "6", "--streams", "3"),
        *("--tokens", "8", "--rounds", "1", "--llama-server", fake_binary),
        *("--llama-server-lookup", "--misbehave short"),
    )


def test_a_whole_serve_run_compares_streams_at_once(
    serve_run: tuple[int, dict[str, Any], str],
) -> None:
    _, found, _ = serve_run
    assert found["settings"]["streams"] == 3
    assert [one["contender"] for one in found["results"]] == [
        "specd",
        "specd, ngram",
        "llama-server",
    ]
    assert all(one["reference_total_ratio"] > 0 for one in found["results"])


def test_a_peer_that_fails_is_told_by_the_exit_status(
    serve_run: tuple[int, dict[str, Any], str],
) -> None:
    status, _, shown = serve_run
    assert status == 1
    assert "failed: llama-server, ngram (7 tokens came instead of 8)" in shown


def test_a_whole_quality_run_finds_fp32_equal_to_itself(toy: Path) -> None:
    status, found, _ = benchmark(
        *("quality", "--model", str(toy), "--threads", "1", "--weights", "bf16"),
        *("--tokens", "90", "--window", "40"),
    )
    assert status == 0
    itself, bf16 = found["results"]
    assert itself["choice"] == "specd, fp32" and itself["kl_divergence"] == 0.0
    assert itself["same_likeliest_token"] == 1.0
    assert bf16["kl_divergence"] > 0 and bf16["positions"] == 90
    assert bf16["perplexity"] == pytest.approx(itself["perplexity"], rel=0.05)


def test_a_whole_invariance_run_compares_both_modes_under_every_load(toy: Path) -> None:
    status, found, shown = benchmark(
        *("invariance", "--model", str(toy), "--kernels", "torch", "--threads", "1"),
        *("--tokens", "3", "--rounds", "1", "--by-rule"),
    )
    assert status == 0
    loads = [one["load"] for one in found["results"]]
    assert loads == ["one stream behind 32", "drafts of 7 behind 32", "8 streams"]
    for one in found["results"]:
        assert (one["kernels"], one["promised"]) == ("torch", "strict")
        assert one["ratio_to_relaxed"]["relaxed"] == 1.0
        assert min(one["tokens_per_s"].values()) > 0
        assert len(one["tokens_per_s"]) == 4 and one["strict_ratio_by_round"]
    assert "strict but for attention" in " ".join(shown.split())
