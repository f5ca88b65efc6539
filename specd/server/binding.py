"""Binds a gRPC server to addresses, each of them wholly or not at all.

Knows where gRPC by itself is lenient: of a name it is content with some addresses, it replaces the
socket that lies at a path, and at its end removes whichever lies there then. So a socket is made
under a name of its own and gets the real one here. Invariant: only a socket made here is removed.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
import grpc

from specd.addresses import UNIX, Address, Tcp, Unix, prepare
from specd.errors import AddressUnavailable
from specd.server.tls import Certificates

_log = logging.getLogger("specd.server")

# Sockets are for this user alone.
_UMASK = 0o177
_IN_USE = "the address is in use"
_REASONS = {
    errno.EADDRINUSE: _IN_USE,
    errno.EADDRNOTAVAIL: "the address is not of this machine",
    errno.EAFNOSUPPORT: "this machine has no IPv6",
}
# What one address of a name may be without harm, if another one is not.
_ELSEWHERE = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


@dataclass(frozen=True, slots=True)
class _Made:
    """A socket in the file system, as it was made."""

    path: Path
    inode: tuple[int, int]

    def is_there(self) -> bool:
        return _inode(self.path) == self.inode


class Binding:
    """The addresses of one server. certificates: for TCP addresses; None is plain text."""

    def __init__(self, server: grpc.aio.Server, certificates: Certificates | None) -> None:
        self._server = server
        self._certificates = certificates
        self._made: list[_Made] = []

    async def bind(self, address: Address) -> Address:
        """Bind and return the real address. Raises AddressUnavailable."""
        if isinstance(address, Unix):
            return self._bind_socket(address)
        return await self._bind_ports(address)

    def release(self) -> None:
        """Remove the sockets that were made here, unless others have taken their places."""
        for made in self._made:
            if made.is_there():
                remove(made.path)
        self._made.clear()

    async def _bind_ports(self, address: Tcp) -> Tcp:
        """A name is all its addresses on one port; with port 0 the first one chooses it."""
        port = address.port
        for host in await _hosts(address):
            place = Tcp(host, port)
            if error := _refusal(place):
                raise AddressUnavailable(_sentence(address, place, error))
            port = self._add_port(place)
        return Tcp(address.host, port)

    def _add_port(self, place: Tcp) -> int:
        try:
            if self._certificates is None:
                return int(self._server.add_insecure_port(str(place)))
            credentials = self._certificates.credentials()
            return int(self._server.add_secure_port(str(place), credentials))
        except RuntimeError as error:  # somebody was faster
            reason = _IN_USE
            if self._certificates is not None:
                reason += ", or gRPC does not take keys of this kind"
            raise AddressUnavailable(f"cannot listen on {place}: {reason}") from error

    def _bind_socket(self, address: Unix) -> Unix:
        prepare(address)
        own = address.path.with_name(f".{secrets.token_hex(4)}")
        before = os.umask(_UMASK)
        try:
            self._server.add_insecure_port(f"{UNIX}{own}")
            os.link(own, address.path)
            self._made.append(_Made(address.path, _inode(own)))
        except FileExistsError as error:
            raise AddressUnavailable(f"cannot listen on {address}: {_IN_USE}") from error
        except (RuntimeError, OSError) as error:
            raise AddressUnavailable(
                f"cannot listen on {address}: no socket can be made in {own.parent}"
            ) from error
        finally:
            os.umask(before)
            own.unlink(missing_ok=True)
        return address


def remove(path: Path) -> None:
    """Remove a file if it can be removed, else log why: nobody's stream may end because of it."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot remove %s: %s", path, error.strerror)


def _inode(path: Path) -> tuple[int, int]:
    """Which file it is; the socket that listens keeps its number from being used again."""
    try:
        found = path.lstat()
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


async def _hosts(address: Tcp) -> list[str]:
    """All of this machine's addresses that it stands for. Raises AddressUnavailable."""
    name = address.host.strip("[]")
    try:
        found = await anyio.to_thread.run_sync(_look_up, name, address.port, abandon_on_cancel=True)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no name of a host"
        raise AddressUnavailable(f"cannot listen on {address}: {reason}") from error
    ours = [host for host in found if not _is_elsewhere(host)]
    return ours or found


def _look_up(name: str, port: int) -> list[str]:
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    hosts = [str(place[0]) for *_, place in found]
    return list(dict.fromkeys(f"[{host}]" if ":" in host else host for host in hosts))


def _is_elsewhere(host: str) -> bool:
    error = _refusal(Tcp(host, 0))
    return error is not None and error.errno in _ELSEWHERE


def _refusal(place: Tcp) -> OSError | None:
    """Why the place cannot be had, as gRPC asks for it; gRPC itself does not tell."""
    host = place.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # [::] takes IPv4, too
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind((host, place.port))
    except OSError as error:
        return error
    return None


def _sentence(address: Tcp, place: Tcp, error: OSError) -> str:
    reason = _REASONS.get(error.errno or 0, error.strerror)
    which = "" if place.host == address.host else f" ({place})"
    return f"cannot listen on {address}{which}: {reason}"
