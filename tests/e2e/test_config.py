"""One declaration gives flags, variables and a file; what is resolved is printed on request."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from specd_client import Client

from tests.support.daemon import environment, running_daemon

WRONG_USAGE = 2


def _print_config(
    *flags: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specd.cli.main", "serve", "--print-config", *flags],
        capture_output=True,
        text=True,
        env=environment(env),
        check=False,
    )


def _written(file: Path, text: str) -> str:
    file.write_text(text)
    return str(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "specd.toml"


def test_a_flag_wins_over_a_variable_a_variable_over_the_file_and_that_over_the_default(
    file: Path,
) -> None:
    file.write_text(
        'max_rows = 3\nmax_waiting = 3\nthreads = 3\nweights = "bf16"\ndrafter = ["none"]\n'
        'listen = ["127.0.0.1:1", "unix:/run/s"]\nkv_memory = "2M"\nreflection = false\n'
    )
    env = {"SPECD_MAX_ROWS": "2", "SPECD_MAX_WAITING": "2", "SPECD_WEIGHTS": ""}
    done = _print_config("--config", str(file), "--max-rows", "1", env=env)
    assert done.returncode == 0, done.stderr
    settings = tomllib.loads(done.stdout)
    assert [settings[name] for name in ("max_rows", "max_waiting", "threads")] == [1, 2, 3]
    assert settings["weights"] == "bf16", "an empty variable is no variable"
    assert settings["drafter"] == []
    assert settings["listen"] == ["127.0.0.1:1", "unix:/run/s"]
    assert settings["kv_memory"] == 2 << 20
    assert settings["reflection"] is False
    assert settings["max_draft_tokens"] == 7


def test_what_is_printed_is_a_file_that_gives_the_same_again(file: Path) -> None:
    odd = ("--model", 'a "quoted" \\ name\té\x7f', "--listen", "[::1]:7", "--drafter", "none")
    first = _print_config(*odd)
    file.write_text(first.stdout)
    again = _print_config(env={"SPECD_CONFIG": str(file)})
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert odd[1] == tomllib.loads(first.stdout)["model"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_rowz = 3", ("max_rowz", "no setting")),
        ("[serve]\nmax_rows = 3", ("serve", "no setting")),
        ("max-rows = 3", ("max-rows", "no setting")),
        ("max_rows = 0", ("max_rows in ", "greater than or equal to 1")),
        ("max_rows = 'many'", ("max_rows in ",)),
        ("drafter = [1]", ("drafter in ", "texts")),
        ("drafter = 7", ("drafter in ", "texts")),
        ("listen = []", ("listen in ",)),
        ("listen = 'nowhere'", ("listen in ", "HOST:PORT")),
        ("max_rows = ", ("is not TOML",)),
        ("\xff", ("is not TOML",)),
    ],
)
def test_a_wrong_file_is_wrong_usage_and_named(
    file: Path, text: str, words: tuple[str, ...]
) -> None:
    file.write_bytes(text.encode("latin-1"))
    done = _print_config("--config", str(file))
    assert done.returncode == WRONG_USAGE
    (sentence,) = done.stderr.splitlines()
    for word in (*words, str(file)):
        assert word in sentence


@pytest.mark.parametrize("where", ["flag", "variable"])
def test_a_file_that_cannot_be_read_is_told(file: Path, where: str) -> None:
    env = {"SPECD_CONFIG": str(file)} if where == "variable" else {}
    done = _print_config(*(("--config", str(file)) if where == "flag" else ()), env=env)
    assert done.returncode == WRONG_USAGE
    assert f"cannot read {file}: No such file" in done.stderr


async def _reflect(channel: grpc.aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    async for _ in stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest()])):
        pass


@pytest.mark.asyncio
async def test_a_daemon_obeys_its_file_and_logs_what_it_came_to(toy: Path, file: Path) -> None:
    config = _written(file, "max_rows = 5\nmax_draft_tokens = 2\nreflection = false\n")
    async with running_daemon(toy, "--config", config) as daemon:
        async with Client(daemon.address) as client:
            limits = (await client.server_info()).limits
            with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
                await _reflect(client.channel)
        assert (limits.max_rows, limits.max_draft_tokens) == (5, 2)
        assert '"max_rows":5' in daemon.log
