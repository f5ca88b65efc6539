"""A gRPC server gets an address wholly or not at all, and removes no socket but its own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from specd.addresses import Tcp, Unix
from specd.errors import AddressUnavailable
from specd.server.binding import Binding

OURS, ALSO_OURS, ELSEWHERE = "127.0.0.1", "127.0.0.2", "192.0.2.1"
IPV6 = Path("/proc/net/if_inet6")
PATIENCE_S = 10.0


@pytest_asyncio.fixture
async def server() -> AsyncIterator[grpc.aio.Server]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    yield server
    await server.stop(0)


@contextmanager
def taken(host: str) -> Iterator[int]:
    """A port that somebody else listens on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as other:
        other.bind((host, 0))
        other.listen()
        yield other.getsockname()[1]


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Let every name stand for these addresses."""
    kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda name, port, **_: [(*kind, (host, port)) for host in hosts]
    )


def reach(host: str, port: int) -> None:
    with socket.socket() as client:
        client.settimeout(PATIENCE_S)
        client.connect((host, port))


@pytest.mark.asyncio
async def test_a_name_is_all_its_addresses_on_one_port(
    server: grpc.aio.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, OURS, ALSO_OURS, OURS)
    bound = await Binding(server, None).bind(Tcp("name", 0))
    assert isinstance(bound, Tcp)
    assert (bound.host, bound.port > 0) == ("name", True)
    await server.start()
    for host in (OURS, ALSO_OURS):
        reach(host, bound.port)


@pytest.mark.asyncio
async def test_a_name_of_which_one_address_is_in_use_is_refused(
    server: grpc.aio.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, OURS, ALSO_OURS)
    with taken(ALSO_OURS) as port, pytest.raises(AddressUnavailable) as refused:
        await Binding(server, None).bind(Tcp("name", port))
    expected = f"cannot listen on name:{port} ({ALSO_OURS}:{port}): the address is in use"
    assert str(refused.value) == expected


@pytest.mark.asyncio
async def test_a_name_is_those_of_its_addresses_that_are_of_this_machine(
    server: grpc.aio.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, ELSEWHERE, OURS)
    bound = await Binding(server, None).bind(Tcp("name", 0))
    assert isinstance(bound, Tcp)
    await server.start()
    reach(OURS, bound.port)


@pytest.mark.asyncio
async def test_a_name_with_no_address_of_this_machine_is_refused(
    server: grpc.aio.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, ELSEWHERE)
    with pytest.raises(AddressUnavailable, match="not of this machine"):
        await Binding(server, None).bind(Tcp("name", 0))


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["no-such-host.invalid", "a..b", "[:::]", "x" * 70])
async def test_what_is_no_name_of_a_host_is_told(server: grpc.aio.Server, name: str) -> None:
    with pytest.raises(AddressUnavailable, match="cannot listen on"):
        await Binding(server, None).bind(Tcp(name, 0))


@pytest.mark.skipif(not IPV6.exists(), reason="no IPv6 here")
@pytest.mark.asyncio
async def test_all_addresses_are_refused_where_one_of_them_is_in_use(
    server: grpc.aio.Server,
) -> None:
    with taken("::1") as port, pytest.raises(AddressUnavailable, match="in use"):
        await Binding(server, None).bind(Tcp("[::]", port))


@pytest.mark.asyncio
async def test_a_socket_answers_where_it_is_and_leaves_no_other_name(
    server: grpc.aio.Server, tmp_path: Path
) -> None:
    binding = Binding(server, None)
    await binding.bind(Unix(tmp_path / "s"))
    await server.start()
    assert os.listdir(tmp_path) == ["s"]
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel:
        await asyncio.wait_for(channel.channel_ready(), PATIENCE_S)
    binding.release()
    assert os.listdir(tmp_path) == []


@pytest.mark.asyncio
async def test_a_socket_of_somebody_else_at_our_path_stays(
    server: grpc.aio.Server, tmp_path: Path
) -> None:
    binding, path = Binding(server, None), tmp_path / "s"
    await binding.bind(Unix(path))
    await server.start()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        binding.release()
        await server.stop(0)
        assert path.is_socket()


@pytest.mark.asyncio
async def test_a_folder_too_long_for_a_socket_is_told(
    server: grpc.aio.Server, tmp_path: Path
) -> None:
    folder = tmp_path / ("x" * (104 - len(bytes(tmp_path))))
    folder.mkdir()
    with pytest.raises(AddressUnavailable, match="too long"):
        await Binding(server, None).bind(Unix(folder / "s"))


@pytest.mark.asyncio
async def test_a_socket_that_cannot_be_removed_is_told_and_holds_up_nothing(
    server: grpc.aio.Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    binding = Binding(server, None)
    await binding.bind(Unix(tmp_path / "s"))

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted", str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        binding.release()
    assert f"cannot remove {tmp_path}/s: Operation not permitted" in caplog.text
