"""`specd bench`: against a running daemon, with one of its own, and where it cannot measure."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from specd.core import library
from tests.e2e.calls import CONTEXT_LENGTH
from tests.e2e.test_start import free_port
from tests.support.commands import specd
from tests.support.daemon import Daemon

SHORT = ("--prompt-tokens", "12", "--new-tokens", "16", "--rounds", "2")
HOW_ON = "start the daemon with `specd serve`, or give its address with --address"


def bench(daemon: Daemon, *flags: str) -> subprocess.CompletedProcess[str]:
    return specd("bench", "--address", daemon.address, *SHORT, *flags)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check_refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert (done.returncode, done.stderr) == (1, f"specd: {message}\n")
    assert json.loads(done.stdout) == {"error": message}


@pytest.fixture(scope="module")
def measured(daemon: Daemon) -> dict[str, Any]:
    """Two lengths, one stream and two, plain and with the default chain."""
    loads = ("--prompt-tokens", "12", "40", "--streams", "1", "2")
    return document(bench(daemon, *loads, "--json"))


def test_every_load_is_measured_plainly_and_with_the_default_chain(
    measured: dict[str, Any],
) -> None:
    keys = [(one["prompt_tokens"], one["streams"], one["drafter"]) for one in measured["results"]]
    assert keys == [
        (length, streams, drafter)
        for length in (12, 40)
        for streams in (1, 2)
        for drafter in (None, "ngram")
    ]


def test_every_figure_is_there_and_they_agree_with_each_other(measured: dict[str, Any]) -> None:
    for one in measured["results"]:
        first_s = one["first_token_ms"] / 1e3
        assert one["prefill_tokens_per_s"] == pytest.approx(one["prompt_tokens"] / first_s)
        assert one["decode_tokens_per_s"] > 0 and one["total_tokens_per_s"] > 0
        assert 0 < one["latency_ms"]["p50"] <= one["latency_ms"]["p99"]
        assert one["pad_positions"] >= 0
    plain, drafted = measured["results"][:2]
    assert (plain["draft_tokens"], plain["acceptance"], plain["tokens_per_step"]) == (0, None, 1)
    assert plain["speedup"] == 1.0 and drafted["speedup"] > 0


def test_drafts_change_no_token(measured: dict[str, Any]) -> None:
    assert all(one["same_tokens_as_plain"] for one in measured["results"])
    assert measured["server"]["invariance"] == "strict"


@pytest.mark.skipif(not library.supported(), reason="there is no core here")
def test_the_share_of_the_bandwidth_is_what_the_steps_read_of_it(measured: dict[str, Any]) -> None:
    roofline = measured["roofline"]
    for result in measured["results"]:
        steps_per_s = result["decode_tokens_per_s"] / result["tokens_per_step"]
        context = result["prompt_tokens"] + measured["settings"]["new_tokens"] / 2
        kv = roofline["kv_bytes_per_position"] * context * result["streams"]
        read = steps_per_s * (roofline["weight_bytes"] + kv)
        expected = pytest.approx(read / roofline["read_bytes_per_second"])
        assert result["roofline_share"] == expected


def test_a_daemon_that_measured_no_bandwidth_leaves_the_share_out_and_says_so(toy: Path) -> None:
    own = ("--model", str(toy), "--kernels", "torch", "--threads", "1", "--drafter", "none")
    done = specd("bench", *own, *SHORT)
    assert "share of the memory bandwidth: left out" in done.stdout


def test_people_get_a_table_and_no_json(daemon: Daemon) -> None:
    done = bench(daemon, "--drafter", "ngram", "--temperature", "0.7")
    assert (done.returncode, done.stderr) == (0, "")
    title, heads, *lines = done.stdout.splitlines()
    assert "weights fp32, kernels " in title
    assert "invariance strict; 16 new tokens, temperature 0.7" in title
    assert "speed-up" in heads and "accepted" in heads
    assert [line.split()[:3] for line in lines[:2]] == [["12", "1", "none"], ["12", "1", "ngram"]]
    assert "{" not in done.stdout


def test_no_drafter_is_plain_decoding_alone(daemon: Daemon) -> None:
    found = document(bench(daemon, "--drafter", "none", "--json"))
    assert [one["drafter"] for one in found["results"]] == [None]


def test_a_daemon_of_its_own_is_started_and_stopped(toy: Path) -> None:
    own = ("--model", str(toy), "--weights", "bf16", "--threads", "1", "--drafter", "ngram")
    found = document(specd("bench", *own, *SHORT, "--json"))
    assert found["server"]["weights"] == "bf16"
    assert [one["drafter"] for one in found["results"]] == [None, "ngram"]


def test_a_model_that_cannot_be_served_is_refused_in_the_daemons_own_words(
    tmp_path: Path,
) -> None:
    done = specd("bench", "--model", str(tmp_path / "none.gguf"), *SHORT, "--json")
    assert done.returncode == 1
    message = json.loads(done.stdout)["error"]
    assert message.startswith("the daemon did not start: ") and "none.gguf" in message
    assert "Traceback" not in message and "\n" not in message


def test_nobody_there_is_one_sentence() -> None:
    address = f"127.0.0.1:{free_port()}"
    done = specd("bench", "--address", address, *SHORT, "--json")
    check_refused(done, f"nobody answers at {address} (Connection refused); {HOW_ON}")


def test_an_unknown_drafter_is_refused_with_those_that_there_are(daemon: Daemon) -> None:
    done = bench(daemon, "--drafter", "ngram", "--drafter", "oracle", "--json")
    check_refused(done, "the daemon has no drafter 'oracle'; it has grammar, ngram")


def test_a_prompt_beyond_the_context_is_refused_before_anything_runs(daemon: Daemon) -> None:
    done = bench(daemon, "--prompt-tokens", "8", str(CONTEXT_LENGTH - 15), "--json")
    assert done.returncode == 1
    message = json.loads(done.stdout)["error"]
    assert message.startswith(
        f"--prompt-tokens {CONTEXT_LENGTH - 15} and --new-tokens 16 are more than the "
        f"{CONTEXT_LENGTH} positions of "
    )


def test_a_temperature_that_the_daemon_refuses_is_told_in_its_words(daemon: Daemon) -> None:
    done = bench(daemon, "--temperature", "-1", "--json")
    assert done.returncode == 1
    assert "temperature" in json.loads(done.stdout)["error"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--weights", "bf16"), "--weights goes with --model"),
        (("--model", "x", "--address", "h:1"), "not allowed with argument"),
        (("--model", "x", "--tls"), "the TLS flags go with --address"),
        (("--drafter", "none", "--drafter", "ngram"), "does not go together"),
        (("--streams", "0"), "'0' is no whole number from 1 to 1024"),
        (("--new-tokens", "1"), "'1' is no whole number from 2"),
    ],
)
def test_flags_that_do_not_fit_are_wrong_usage(flags: tuple[str, ...], words: str) -> None:
    done = specd("bench", *flags)
    assert done.returncode == 2
    assert words in done.stderr
