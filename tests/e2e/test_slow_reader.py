"""A client that opens a stream and never takes a byte of it, and then is gone.

Speaks HTTP/2 by hand: a stream window of zero is what no library lets one ask for.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest
from specd_client import Client
from specd_client.v1 import generation_pb2 as pb

from tests.e2e.calls import answer, quiet, wait_for
from tests.support.daemon import running_daemon
from tests.support.toy_gguf import build_toy_model

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4
METHOD = "/specd.v1.GenerationService/StreamGenerate"
# grpc takes 64 KiB from a handler before a write has to wait; a delta is at least 20 bytes.
ENOUGH_STEPS = 3000


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream)
    return head + payload


def _header(name: str, value: str) -> bytes:
    """A literal header without indexing, both strings as they are."""
    parts = (part.encode() for part in (name, value))
    return b"\x00" + b"".join(bytes([len(part)]) + part for part in parts)


def _deaf_stream(address: str, request: pb.StreamGenerateRequest) -> socket.socket:
    """Start StreamGenerate on a connection whose streams have a window of zero bytes."""
    host, _, port = address.rpartition(":")
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        ":authority": address,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    message = request.SerializeToString()
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(
        PREFACE
        + _frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
        + _frame(HEADERS, END_HEADERS, 1, b"".join(_header(*item) for item in headers.items()))
        + _frame(DATA, END_STREAM, 1, struct.pack(">BI", 0, len(message)) + message)
    )
    return connection


@pytest.mark.asyncio
async def test_a_reader_that_takes_nothing_holds_up_nobody_and_leaves_nothing(
    models: Path,
) -> None:
    path = models / "deaf.gguf"
    build_toy_model(path, context_length=16_384)
    request = pb.StreamGenerateRequest(
        input={"text": "x"},
        stop={"ignore_eos": True},
        output={"token_ids": True, "speculation_steps": True},
        speculation={"mode": 1},
    )
    async with running_daemon(path) as daemon:
        async with Client(daemon.address) as client:
            with _deaf_stream(daemon.address, request):
                await wait_for(client, running=1)
                steps = (await client.server_info()).counters.steps
                while (await client.server_info()).counters.steps < steps + ENOUGH_STEPS:
                    run = await answer(client, max_new_tokens=100, ignore_eos=True)
                    assert len(run.token_ids) == 100
                assert (await client.server_info()).counters.running == 1
            await quiet(client)
