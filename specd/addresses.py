"""Addresses that the daemon listens on: `HOST:PORT` and `unix:PATH`.

Knows their forms, the default place of the admin socket and who may be at a path already; binds
nothing. Invariant: a path is given away only if nobody answers on it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from specd.errors import AddressUnavailable

# The kernel keeps 108 bytes for a path, the last of them a zero.
MAX_PATH_BYTES = 107
UNIX = "unix:"
_TCP = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/]+):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True)
class Tcp:
    """A host and a port; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Unix:
    """A socket in the file system; the path is absolute."""

    path: Path

    def __str__(self) -> str:
        return f"{UNIX}{self.path}"


Address = Tcp | Unix


def parse(text: str) -> Address:
    """Read `HOST:PORT`, `unix:PATH` or `unix:///PATH`. Raises AddressUnavailable."""
    if text.startswith(UNIX):
        return _unix(text)
    match = _TCP.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise AddressUnavailable(f"the address {text!r} should be HOST:PORT or unix:PATH")
    return Tcp(match["host"], int(match["port"]))


def is_reachable_from_outside(address: Address) -> bool:
    """Whether other machines may reach it; true for a name that is not known to be local."""
    if isinstance(address, Unix) or address.host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(address.host.strip("[]")).is_loopback
    except ValueError:
        return True


def default_admin(listen: Address) -> Unix:
    """The admin socket of a daemon that listens there, one for each address.

    Beside a socket, else in a folder that only this user can enter. Touches nothing.
    """
    if isinstance(listen, Unix):
        return Unix(listen.path.with_name(f"{listen.path.name}.admin"))
    return Unix(_runtime_folder() / f"{listen}.admin")


def prepare(address: Unix) -> None:
    """Make sure that a socket may be made at the path.

    gRPC replaces what is there without asking: of two daemons the first would go deaf.
    Raises:
        AddressUnavailable: somebody listens there, it is no socket, or its folder is not ours.
    """
    path = address.path
    if path.parent == _runtime_folder():
        _prepare_runtime_folder(path.parent)
    if not path.parent.is_dir():
        raise AddressUnavailable(f"cannot listen on {address}: there is no folder {path.parent}")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressUnavailable(f"cannot listen on {address}: the path is not a socket")
    if _somebody_listens(path):
        raise AddressUnavailable(f"cannot listen on {address}: the address is in use")


def _unix(text: str) -> Unix:
    name = text.removeprefix(UNIX)
    name = name.removeprefix("//") if name.startswith("///") else name
    if not name or name.startswith("//") or "\0" in name:
        raise AddressUnavailable(f"the address {text!r} should be unix:PATH")
    path = Path(os.path.abspath(name))
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise AddressUnavailable(f"the path of {text!r} has more than {MAX_PATH_BYTES} bytes")
    return Unix(path)


def _runtime_folder() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base):
        return Path(base) / "specd"
    return Path(tempfile.gettempdir()) / f"specd-{os.getuid()}"


def _prepare_runtime_folder(folder: Path) -> None:
    """Make it for this user alone: in a shared folder another user could have been first."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise AddressUnavailable(f"cannot make the folder {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise AddressUnavailable(
            f"the folder {folder} is not this user's alone; name another place with --admin-listen"
        )


def _somebody_listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:  # not ours to enter, or too busy to answer
            return True
    return True
