"""The sync client against a real daemon: all of its calls, and every way out of a stream."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from specd_client import (
    CallCancelled,
    Delta,
    Event,
    Finished,
    FinishReason,
    InvalidRequest,
    NotReady,
    Overloaded,
    Reason,
    SequenceFinished,
    Started,
    UnknownName,
)
from specd_client.sync import Client

from tests.e2e.calls import PATIENCE_S, PROMPT
from tests.support.daemon import Daemon, daemon_process, environment, spawned

LONG: dict[str, Any] = {"ignore_eos": True}

INTERRUPTED = """
import sys
from specd_client.sync import Client

with Client(sys.argv[1]) as client:
    try:
        for event in client.stream("Hi", ignore_eos=True):
            print("event", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.stdin.read()  # the channel stays open
"""


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.address) as client:
        yield client


@pytest.fixture(scope="module")
def narrow_daemon(long_toy: Path) -> Iterator[Daemon]:
    with daemon_process(long_toy, "--max-rows", "1", "--max-waiting", "0") as daemon:
        yield daemon


def ending(events: list[Event]) -> FinishReason:
    """Why the only sequence of a whole stream ended."""
    *_, sequence, finished = events
    assert isinstance(sequence, SequenceFinished)
    assert isinstance(finished, Finished)
    return sequence.finish_reason


def test_a_stream_is_what_generate_returns(client: Client) -> None:
    options: dict[str, Any] = {"seed": 7, "max_new_tokens": 12, "return_token_ids": True}
    events = list(client.stream(PROMPT, timeout_s=PATIENCE_S, **options, **LONG))
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished) and events[-1].usage.completion_tokens == 12
    deltas = [event for event in events if isinstance(event, Delta)]
    answer = client.generate(PROMPT, timeout_s=PATIENCE_S, **options, **LONG)
    assert "".join(delta.text for delta in deltas) == answer.text
    assert sum((delta.token_ids for delta in deltas), ()) == answer.token_ids
    assert (answer.seed, answer.finish_reason) == (7, FinishReason.MAX_TOKENS)


def test_the_model_and_its_tokenizer(client: Client) -> None:
    model = client.model()
    assert client.model(model.name) == model
    token_ids = client.tokenize(PROMPT, add_special_tokens=False)
    assert client.detokenize(token_ids) == PROMPT
    with pytest.raises(UnknownName) as unknown:
        client.model("another")
    assert (unknown.value.reason, unknown.value.resource) == (
        Reason.UNKNOWN_NAME,
        ("model", "another"),
    )


def test_the_server_tells_of_itself(client: Client) -> None:
    now = client.server_info()
    with client.watch_server_info(0.1) as infos:
        first, second = next(infos), next(infos)
    assert now.version == first.version == second.version
    with pytest.raises(InvalidRequest):
        next(client.watch_server_info(1e-6))


def test_a_generation_can_be_aborted_from_another_thread(narrow_daemon: Daemon) -> None:
    with Client(narrow_daemon.address) as client, ThreadPoolExecutor() as threads:
        stream = client.stream(PROMPT, request_id="to-abort", **LONG)
        next(stream)
        rest = threads.submit(list, stream)
        assert client.abort("to-abort")
        assert ending(rest.result(PATIENCE_S)) is FinishReason.ABORTED
        assert not client.abort("to-abort")


def test_a_stream_can_be_cancelled_from_another_thread(narrow_daemon: Daemon) -> None:
    with Client(narrow_daemon.address) as client, ThreadPoolExecutor() as threads:
        stream = client.stream(PROMPT, **LONG)
        next(stream)
        rest = threads.submit(list, stream)
        stream.cancel()
        with pytest.raises(CallCancelled):
            rest.result(PATIENCE_S)
        narrow_daemon.wait_quiet()


def test_leaving_the_loop_frees_the_row(narrow_daemon: Daemon) -> None:
    with Client(narrow_daemon.address) as client:
        for event in client.stream(PROMPT, **LONG):
            if isinstance(event, Delta):
                break
        narrow_daemon.wait_quiet()


def test_ctrl_c_frees_the_row_while_the_program_goes_on(narrow_daemon: Daemon) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, narrow_daemon.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    with program:
        try:
            assert program.stdin is not None and program.stdout is not None
            assert program.stdout.readline() == b"event\n"
            program.send_signal(signal.SIGINT)
            assert b"interrupted\n" in iter(program.stdout.readline, b"")
            narrow_daemon.wait_quiet()
            assert program.poll() is None
        finally:
            program.kill()


def test_a_full_server_is_tried_again(narrow_daemon: Daemon) -> None:
    with Client(narrow_daemon.address) as client, ThreadPoolExecutor() as threads:
        running = client.stream(PROMPT, **LONG)
        next(running)
        # It is refused, and told to come back in a second.
        late = threads.submit(client.generate, PROMPT, max_new_tokens=2, **LONG)
        with Client(narrow_daemon.address, retries=False) as impatient:
            with pytest.raises(Overloaded, match="QUEUE_FULL"):
                impatient.generate(PROMPT)
        running.cancel()
        assert late.result(PATIENCE_S).usage.completion_tokens == 2


def test_a_daemon_that_is_still_loading_can_be_waited_for(toy: Path, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/specd.sock"
    with spawned(toy, listen=address), Client(address) as client:
        client.wait_ready(PATIENCE_S)
        assert client.generate(PROMPT, max_new_tokens=1, **LONG).usage.completion_tokens == 1


def test_a_drain_ends_what_is_live_and_sends_the_rest_away(long_toy: Path) -> None:
    with spawned(long_toy) as daemon:
        daemon.wait_ready()
        with (
            Client(daemon.address, retries=False) as client,
            Client(daemon.admin_address) as operator,
            ThreadPoolExecutor() as threads,
        ):
            stream = client.stream(PROMPT, **LONG)
            next(stream)
            rest = threads.submit(list, stream)
            started_s = time.monotonic()
            drained = operator.drain(0.5)
            assert time.monotonic() - started_s >= 0.5
            assert (drained.finished, drained.aborted) == (0, 1)
            assert ending(rest.result(PATIENCE_S)) is FinishReason.ABORTED
            with pytest.raises(NotReady) as refused:
                client.generate(PROMPT)
            assert refused.value.reason == Reason.NOT_SERVING
        daemon.terminate()
        assert daemon.wait_exit() == 0
        daemon.check_log()
