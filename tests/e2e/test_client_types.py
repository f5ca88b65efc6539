"""What a user's type checker says of programs that use the client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from specd_client import Client, Completion, Delta, Event, Options, Overloaded, Reason, Stream
from specd_client import sync

OPTIONS: Options = {"temperature": 0.5, "stop_strings": ["."], "seed": 7}
DETAILED: Options = {"logit_bias": {3: -1.5}, "top_logprobs": 2, "choice": ["yes"]}


async def asynchronous(address: str) -> Completion:
    async with Client(address, metadata=[("x-request-id", "1")], retries=False) as client:
        await client.wait_ready(5)
        stream: Stream[Event] = client.stream("Hi", max_new_tokens=4, top_k=1)
        async for event in stream:
            if isinstance(event, Delta):
                print(event.text)
        async for info in client.watch_server_info(1):
            print(info.counters.steps + 1)
        tokens: tuple[int, ...] = await client.tokenize(messages=[{"role": "user"}])
        text: str = await client.detokenize(tokens)
        return await client.generate(text, timeout_s=3, **OPTIONS)


def blocking(address: str) -> Completion:
    with sync.Client(address) as client:
        stream: sync.Stream[Event] = client.stream(token_ids=[1, 2], **OPTIONS)
        for event in stream:
            match event:
                case Delta(text=text):
                    print(text)
        try:
            name: str = client.model().name
            found: bool = client.abort(name)
        except Overloaded as error:
            print(error.reason == Reason.QUEUE_FULL, error.retry_after_s, found)
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        for sequence in client.generate("Hi", json_schema=schema, logprob_basis="RAW").sequences:
            print(sequence.text, sequence.finish_reason.name)
        answer = client.generate("Hi", **DETAILED)
        for entry in answer.logprobs:
            rank: int | None = entry.rank
            print(rank, [other.logprob + 1 for other in entry.alternatives])
        return client.generate("Hi", drafters=["ngram"])
"""
MISTAKES = """
from specd_client import Client, sync


async def mistakes(client: Client, blocking: sync.Client) -> None:
    client.stream("Hi", temprature=1.0)
    await client.generate("Hi", seed="7")
    blocking.stream("Hi", temprature=1.0)
    blocking.tokenize("Hi", temperature=1.0)
    for event in client.stream("Hi"):
        print(event)
    text: str = blocking.generate("Hi")
    blocking.generate("Hi", logprob_basis="raw")
    blocking.generate("Hi", choice=[1])
"""
MISTAKEN_LINES = (6, 7, 8, 9, 10, 12, 13, 14)


def checked(program: str, folder: Path) -> list[str]:
    """Complaints of mypy in strict mode, without any settings of this project."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "program.py"]
    done = subprocess.run(
        [*command, "--no-error-summary"], cwd=folder, capture_output=True, text=True
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if ": error:" in line]


def test_a_program_that_is_right_has_no_complaint(tmp_path: Path) -> None:
    assert checked(PROGRAM, tmp_path) == []


def test_each_mistake_is_found_in_its_line(tmp_path: Path) -> None:
    found = {int(line.split(":")[1]) for line in checked(MISTAKES, tmp_path)}
    assert found == set(MISTAKEN_LINES)
