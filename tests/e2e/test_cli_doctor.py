"""`specd doctor` as a process: what is on this machine, and whether it keeps the guarantee."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from specd_client.sync import Client

from specd.core import library
from tests.support.commands import CTRL_C, specd, terminal
from tests.support.daemon import Daemon

FLAGS = ("--invariance", "--threads", "1")


def document(*flags: str, status: int = 0) -> dict[str, Any]:
    done = specd("doctor", *flags, "--json")
    assert done.returncode == status, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_it_tells_what_is_on_this_machine_in_one_hundred_columns() -> None:
    done = specd("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 100
    for word in ("python", "processor", "memory", "torch", "kernels", "models", "--invariance"):
        assert word in done.stdout


def test_a_taken_address_and_an_empty_cache_are_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = specd(
            *("doctor", "--json"),
            env={"SPECD_CACHE": str(tmp_path), "SPECD_LISTEN": f"127.0.0.1:{port}"},
        )
    facts = json.loads(done.stdout)["facts"]
    assert facts["listen"] == f"127.0.0.1:{port} is taken"
    assert facts["models"].startswith("none; `specd models pull`")
    expected = ", ".join(library.supported()) or "torch alone"
    assert facts["kernels"].startswith(expected)


def test_the_guarantee_is_checked_on_what_a_daemon_would_serve(toy: Path, daemon: Daemon) -> None:
    # The settings of the shared daemon.
    found = document(*FLAGS, "--model", str(toy), "--weights", "fp32")
    assert found["holds"] and found["differences"] == 0
    assert (found["asked"], found["promised"], found["rounds"]) == ("strict", "strict", 1)
    assert {check["part"] for check in found["checks"]} == {"operations", "logits", "tokens"}
    assert all(check["compared"] for check in found["checks"])
    assert any(check["name"].startswith("ngram, ") for check in found["checks"])
    with Client(daemon.address) as client:
        info = client.server_info()
    assert found["kernels"] == info.kernels
    assert found["arithmetic_fingerprint"] == info.arithmetic_fingerprint


def test_relaxed_arithmetic_is_found_out(odd_toy: Path) -> None:
    done = specd(
        *("doctor", "--invariance", "relaxed", "--threads", "1", "--model", str(odd_toy)),
        *("--kernels", "torch", "--weights", "fp32"),
    )
    assert done.returncode == 1
    assert "invariance relaxed" in done.stdout
    for told in ("logits differ, by up to", "operations, the probe:", "differences (in 1 round"):
        assert told in done.stdout
    assert max(map(len, done.stdout.split("a row: all logits")[0].splitlines()[3:])) <= 100


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--model", "nobody/knows/it"), "is neither a file nor a named model"),
        (("--drafter", "nobody_knows:it"), "there is no module 'nobody_knows'"),
    ],
)
def test_what_cannot_be_checked_is_told_in_a_sentence(
    toy: Path, flags: tuple[str, str], sentence: str
) -> None:
    model = () if "--model" in flags else ("--model", str(toy))
    done = specd("doctor", *FLAGS, *model, *flags, "--json")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("specd: ") and sentence in line
    assert f"specd: {json.loads(done.stdout)['error']}" == line


@pytest.mark.parametrize("flags", [("--model", "x"), ("--minutes", "1")])
def test_flags_of_the_check_do_not_go_without_it(flags: tuple[str, str]) -> None:
    done = specd("doctor", *flags)
    assert done.returncode == 2
    assert f"{flags[0]} goes with --invariance" in done.stderr


@pytest.mark.parametrize("flags", [("--minutes", "nan"), ("--seed", "-1")])
def test_numbers_that_mean_nothing_are_refused(flags: tuple[str, str]) -> None:
    done = specd("doctor", "--invariance", *flags)
    assert done.returncode == 2
    assert "is no " in done.stderr


def test_an_interrupt_ends_a_long_check(toy: Path) -> None:
    command = ("doctor", *FLAGS, "--model", str(toy), "--minutes", "600")
    with terminal(*command) as shown:
        shown.wait_for("tokens, round 1")
        shown.type(CTRL_C)
        assert shown.wait_end() == 130
        assert "specd: interrupted" in shown.output
