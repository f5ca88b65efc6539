"""A client that opens a stream and takes not a byte of it until it is told to.

Speaks HTTP/2 by hand: a stream window of zero is what no library lets one ask for. Knows frames and
the framing of gRPC messages, nothing of specd.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK = END_STREAM = 1
END_HEADERS = 4
INITIAL_WINDOW_SIZE = 4
WIDE_OPEN = 1 << 30
PATIENCE_S = 30.0


class DeafReader:
    """One call on a connection of its own, whose streams have a window of zero bytes."""

    def __init__(self, address: str, method: str, message: bytes) -> None:
        """Start the call. `method`: its path, with the slash."""
        host, _, port = address.rpartition(":")
        self._connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": address,
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(_header(*item) for item in headers.items())
        self._connection.sendall(
            PREFACE
            + _window(0)
            + _frame(HEADERS, END_HEADERS, 1, block)
            + _frame(DATA, END_STREAM, 1, struct.pack(">BI", 0, len(message)) + message)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def listen(self) -> list[bytes]:
        """Take everything from now on; returns all messages when the stream has ended."""
        update = _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WIDE_OPEN))
        self._connection.sendall(update + _window(WIDE_OPEN))
        data = b"".join(self._data())
        messages = []
        while data:
            _, length = struct.unpack_from(">BI", data)
            messages.append(data[5 : 5 + length])
            data = data[5 + length :]
        return messages

    def _data(self) -> Iterator[bytes]:
        while True:
            head = self._exactly(9)
            length = int.from_bytes(head[:3], "big")
            kind, flags, payload = head[3], head[4], self._exactly(length)
            if kind == DATA:
                yield payload
            if kind == PING and not flags & ACK:
                self._connection.sendall(_frame(PING, ACK, 0, payload))
            if kind in {DATA, HEADERS} and flags & END_STREAM:
                return

    def _exactly(self, length: int) -> bytes:
        found = b""
        while len(found) < length:
            part = self._connection.recv(length - len(found))
            if not part:
                raise ConnectionError("the server has closed the connection")
            found += part
        return found


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream)
    return head + payload


def _window(size: int) -> bytes:
    """Settings by which every stream may take `size` bytes."""
    return _frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, size))


def _header(name: str, value: str) -> bytes:
    """A literal header without indexing, both strings as they are."""
    parts = (part.encode() for part in (name, value))
    return b"\x00" + b"".join(bytes([len(part)]) + part for part in parts)
