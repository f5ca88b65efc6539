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
    *flags: str, env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specd.cli.main", "serve", "--print-config", *flags],
        input=stdin,
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
        ("max_rows = 0", ("max_rows in ", "a number from 1")),
        ("max_rows = 'many'", ("max_rows in ",)),
        ("drafter = [1]", ("drafter in ", "texts")),
        ("drafter = 7", ("drafter in ", "texts")),
        ("listen = []", ("listen in ",)),
        ("listen = 'nowhere'", ("listen in ", "HOST:PORT")),
        ("max_rows = ", ("is not TOML",)),
        ('model = "a\\u0000b"', ("model in ", "UTF-8")),
        ('ready_file = "a\\u0000b"', ("ready_file in ", "UTF-8")),
        ('listen = ["unix:/a\\u0000b"]', ("listen in ",)),
        ("a = " + "[" * 5000, ("is not TOML", "recursion")),
        ("max_rows = " + "1" * 5000, ("is not TOML", "digits")),
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


def test_a_file_may_be_a_pipe() -> None:
    done = _print_config("--config", "/dev/stdin", stdin="max_rows = 3\n")
    assert (done.returncode, tomllib.loads(done.stdout)["max_rows"]) == (0, 3)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    done = _print_config("--config", str(tmp_path))
    assert done.returncode == WRONG_USAGE
    assert done.stderr == f"specd: cannot read {tmp_path}: Is a directory\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--kv-memory", "2X"), "bytes, or a number with a suffix K, M or G"),
        (("--kv-memory", "9" * 5000), "bytes, or a number with a suffix K, M or G"),
        (("--log-level", "TRACE"), "takes 'DEBUG', 'INFO', 'WARNING' or 'ERROR', not 'TRACE'"),
        (("--weights", "int3"), "takes 'auto', 'fp32', 'bf16', 'int8' or 'int4', not 'int3'"),
        (("--kernels", "sse"), "'avx512', 'avx2' or 'torch', not 'sse'"),
        (("--max-rows", "many"), "takes a whole number, not 'many'"),
        (("--max-rows", "1" * 5000), "takes a whole number, not '111"),
        (("--drain-seconds", "soon"), "takes a number, not 'soon'"),
        (("--drain-seconds", "nan"), "takes a number"),
        (("--insecure", "maybe"), "takes true or false, not 'maybe'"),
        (("--threads", "513"), "takes a number up to 512, not '513'"),
        (("--kv-memory", "0"), "takes a number above 0, not 0"),
    ],
)
def test_a_wrong_value_is_told_in_our_words(flags: tuple[str, str], words: str) -> None:
    done = _print_config(*flags)
    assert done.returncode == WRONG_USAGE
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"specd: {flags[0]} (or SPECD_") and words in sentence
    assert len(sentence) < 200


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--tls-key", "k"), "--tls-certificate and --tls-key go together"),
        (("--tls-client-ca", "c"), "--tls-client-ca needs --tls-certificate and --tls-key"),
        (
            ("--listen", "unix:/s", "--tls-certificate", "c", "--tls-key", "k"),
            "--tls-certificate is for HOST:PORT; every address is a socket, which has no TLS",
        ),
        (("--max-rows", "300"), "--max-step-tokens has to be at least --max-rows"),
        (
            ("--listen", "0.0.0.0:1"),
            "0.0.0.0:1 can be reached from other machines: give --tls-certificate and --tls-key, "
            "or allow it with --insecure",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_named_as_flags(
    flags: tuple[str, ...], sentence: str
) -> None:
    done = _print_config(*flags)
    assert (done.returncode, done.stderr) == (WRONG_USAGE, f"specd: {sentence}\n")


def test_tls_is_taken_where_any_address_has_a_use_for_it() -> None:
    tls = ("--tls-certificate", "c", "--tls-key", "k")
    for more in (
        ("--listen", "unix:/s", "--admin-listen", "127.0.0.1:1"),
        ("--listen", "unix:/s", "--listen", "127.0.0.1:1", "--admin-listen", "none"),
    ):
        assert _print_config(*tls, *more).returncode == 0


@pytest.mark.parametrize("flag", ["insecure", "reflection"])
def test_a_flag_of_true_and_false_may_stand_alone(flag: str) -> None:
    env = {f"SPECD_{flag.upper()}": "false"}
    for words in ((), ("true",)):
        done = _print_config(f"--{flag}", *words, env=env)
        assert (done.returncode, tomllib.loads(done.stdout)[flag]) == (0, True)
    assert tomllib.loads(_print_config(env=env).stdout)[flag] is False


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
