"""How the daemon starts, and how it says that it cannot."""

from __future__ import annotations

import json
import resource
import shutil
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from specd_client import Client, NotReady
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import generation_pb2_grpc, model_pb2, model_pb2_grpc

from tests.e2e.calls import PROMPT, answer
from tests.e2e.drafters_under_test import spec
from tests.support.daemon import Daemon, running_daemon, spawned

HERE = Path(__file__).parent
START_FAILED, WRONG_USAGE = 3, 2
SLOW = ("--kernels", "torch", "--max-step-tokens", "4096")  # torch warms up every bucket
STATUS = health_pb2.HealthCheckResponse
# A client that finds nobody there tries again at once.
EAGER = [
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 20),
]


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_ready_file_tells_address_and_pid(daemon: Daemon) -> None:
    told = json.loads(daemon.ready_file.read_text())
    assert told == {
        "address": daemon.address,
        "addresses": [daemon.address],
        "admin_address": daemon.admin_address,
        "pid": daemon.process.pid,
    }
    assert not list(daemon.ready_file.parent.glob("*.part"))


def test_the_daemon_may_open_as_many_files_as_the_system_lets_it(toy: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
    try:
        with spawned(toy) as daemon:
            daemon.wait_ready()
            assert resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_file_of_a_killed_daemon_is_gone_before_the_next_one_is_ready(
    slow_toy: Path, tmp_path: Path
) -> None:
    ready = tmp_path / "ready.json"
    ready.write_text('{"address": "127.0.0.1:1", "pid": 1}')
    with spawned(slow_toy, *SLOW, "--ready-file", str(ready)) as daemon:
        daemon.wait_until(lambda: not ready.exists(), 30, "the old file stays")
        assert "serving" not in daemon.log
        daemon.wait_until(ready.exists, 60, "no new file comes")


@pytest.mark.asyncio
async def test_until_warm_health_is_not_serving_and_calls_are_unavailable_and_told_to_retry(
    slow_toy: Path,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    with spawned(slow_toy, *SLOW, listen=address) as daemon:
        async with Client(address, channel_options=EAGER, retries=False) as client:
            health = health_pb2_grpc.HealthStub(client.channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            assert (await watch.read()).status == STATUS.NOT_SERVING
            for name in ("", "specd.v1.GenerationService", "specd.v1.ModelService"):
                told = await health.Check(health_pb2.HealthCheckRequest(service=name))
                assert told.status == STATUS.NOT_SERVING
            await _check_refused(client)
            assert not daemon.ready_file.exists()
            assert (await watch.read()).status == STATUS.SERVING
            assert (await answer(client, max_new_tokens=1)).usage.completion_tokens == 1
            watch.cancel()
        daemon.wait_ready()
        assert daemon.address == address
        daemon.check_log()


async def _check_refused(client: Client) -> None:
    with pytest.raises(NotReady) as refused:
        await client.generate(PROMPT)
    assert (refused.value.reason, refused.value.message) == (
        "NOT_SERVING",
        "not serving: the model is loading",
    )
    assert refused.value.retry_after_s
    generation = generation_pb2_grpc.GenerationServiceStub(client.channel)
    model = model_pb2_grpc.ModelServiceStub(client.channel)
    for call in (
        generation.Generate(pb.GenerateRequest(input={"text": PROMPT})),
        generation.AbortGeneration(pb.AbortGenerationRequest(request_id="x")),
        model.GetModel(model_pb2.GetModelRequest()),
        model.GetServerInfo(model_pb2.GetServerInfoRequest()),
        model.WatchServerInfo(model_pb2.WatchServerInfoRequest()).read(),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_sigterm_while_loading_ends_the_daemon_soon_and_cleanly(slow_toy: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with spawned(slow_toy, *SLOW, listen=address) as daemon:
        with grpc.insecure_channel(address, EAGER) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            told = health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=60)
            assert told.status == STATUS.NOT_SERVING
            daemon.terminate()
        assert daemon.wait_exit(10) == 0
        assert not daemon.ready_file.exists()
        assert "specd.app: serving" not in daemon.log
        daemon.check_log()


@dataclass(frozen=True)
class Case:
    """A daemon that must not start, and words that its output must have."""

    words: tuple[str, ...]
    flags: tuple[str, ...] = ()
    model: Path | str | None = None
    listen: str = "127.0.0.1:0"
    env: Mapping[str, str] = field(default_factory=dict)


def _check_failing(toy: Path, status: int, *cases: Case) -> None:
    """Start them, two at a time, and look at exit status and output."""

    def outcome(case: Case) -> tuple[int, str]:
        model = toy if case.model is None else case.model
        with spawned(model, *case.flags, env=case.env, cwd=HERE, listen=case.listen) as daemon:
            return daemon.wait_exit(), daemon.log

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(outcome, cases))
    for case, (found, log) in zip(cases, outcomes, strict=True):
        assert found == status, log
        assert "Traceback" not in log
        last = log.splitlines()[-1]
        assert last.startswith("specd: ")
        for word in case.words:
            assert word in last


@pytest.mark.asyncio
async def test_a_port_in_use_is_told_and_the_daemon_that_has_it_goes_on(
    toy: Path, daemon: Daemon
) -> None:
    sentence = f"cannot listen on {daemon.address}: the address is in use"
    _check_failing(toy, START_FAILED, Case((sentence,), listen=daemon.address))
    async with Client(daemon.address) as client:
        assert (await answer(client, max_new_tokens=1)).usage.completion_tokens == 1


def test_an_address_that_cannot_be_had_is_told(toy: Path) -> None:
    elsewhere = "192.0.2.1:50051"
    _check_failing(
        toy,
        START_FAILED,
        Case((elsewhere, "listen"), ("--insecure", "true"), listen=elsewhere),
    )


def test_without_tls_an_address_for_others_has_to_be_meant(toy: Path) -> None:
    _check_failing(
        toy,
        WRONG_USAGE,
        *(
            Case((address, "--tls-certificate", "--insecure"), listen=address)
            for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:1", "some.host:1")
        ),
        Case(("0.0.0.0:1", "--insecure"), ("--admin-listen", "0.0.0.0:1")),
        Case(("go together",), ("--tls-key", "key.pem")),
        Case(("needs --tls-certificate",), ("--tls-client-ca", "ca.pem")),
    )


def test_a_model_that_cannot_be_loaded_is_told(toy: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(toy.read_bytes()[:-100])
    not_pulled = {"SPECD_CACHE": str(tmp_path)}
    _check_failing(
        toy,
        START_FAILED,
        Case((str(broken), "truncated"), model=broken),
        Case(("specd models pull smollm2-135m",), model="smollm2-135m", env=not_pulled),
    )


def test_a_drafter_that_cannot_be_loaded_is_told(toy: Path) -> None:
    _check_failing(
        toy,
        START_FAILED,
        Case(("'eagle'", "known names are", "ngram"), ("--drafter", "eagle")),
    )


def test_a_bad_flag_or_variable_is_wrong_usage_and_named(toy: Path) -> None:
    flags = (
        ("--max-rows", "0"),
        ("--max-rows", "many"),
        ("--weights", "int3"),
        ("--kv-memory", "12X"),
        ("--drafter", "none", "--drafter", "ngram"),
        ("--drafter", "ngram", "--drafter", "ngram"),
        ("--max-draft-tokens", "65"),
        ("--admin-listen", "somewhere"),
    )
    misspelt = {"SPECD_MAX_ROW": "3", "specd_wieghts": "bf16"}
    _check_failing(
        toy,
        WRONG_USAGE,
        *(Case((given[0],), given) for given in flags),
        Case(("--max-step-tokens",), ("--max-rows", "64", "--max-step-tokens", "32")),
        Case(tuple(misspelt), env=misspelt),
        Case(("SPECD_MAX_WAITING",), env={"SPECD_MAX_WAITING": "-1"}),
    )


def test_an_unknown_flag_is_wrong_usage_and_named(toy: Path) -> None:
    with spawned(toy, "--no-such-flag", "1") as daemon:
        assert daemon.wait_exit() == WRONG_USAGE
        assert "--no-such-flag" in daemon.log


def test_a_pool_without_a_page_and_an_unwritable_ready_file_are_told(toy: Path) -> None:
    nowhere = "/no/such/folder/ready.json"
    _check_failing(
        toy,
        START_FAILED,
        Case(("--kv-memory",), ("--kv-memory", "1K")),
        Case((nowhere,), ("--ready-file", nowhere)),
        Case(("/dev/null", "no file"), ("--ready-file", "/dev/null")),
        Case(("ready file", "no file"), ("--ready-file", "/")),
        Case(("ready file", "no file"), ("--ready-file", "x" * 300)),
        Case(("neither a file nor",), model="x" * 300),
    )


async def _limits(daemon: Daemon) -> model_pb2.ServerInfo:
    async with Client(daemon.address) as client:
        return await client.server_info()


@pytest.mark.asyncio
async def test_variables_set_what_flags_set_and_flags_win(toy: Path) -> None:
    env = {
        "SPECD_MAX_ROWS": "3",
        "SPECD_MAX_WAITING": "5",
        "SPECD_DRAFTER": f"ngram,{spec('oracle')}",
        "SPECD_LOG_LEVEL": "",
    }
    async with running_daemon(toy, "--max-waiting", "6", env=env, cwd=HERE) as daemon:
        info = await _limits(daemon)
    assert (info.limits.max_rows, info.limits.max_waiting) == (3, 6)
    assert list(info.drafters) == ["grammar", "ngram", spec("oracle")]


@pytest.mark.asyncio
async def test_a_file_with_a_blank_in_its_name_is_served_and_none_serves_plainly(
    toy: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a model \u00e9.gguf"
    shutil.copy(toy, path)
    async with running_daemon(path, "--drafter", "none") as daemon:
        info = await _limits(daemon)
        assert (info.model, list(info.drafters)) == (str(path), [])
        async with Client(daemon.address) as client:
            run = await answer(client, "ab" * 20, temperature=0, max_new_tokens=20)
            assert run.speculation.total.draft_tokens == 0
            assert run.speculation.total.verify_steps == run.usage.completion_tokens
