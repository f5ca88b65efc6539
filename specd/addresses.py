"""Addresses that the daemon listens on: `HOST:PORT` and `unix:PATH`.

Knows their forms, the default place of the admin socket and who may be at a path already; binds
nothing. Invariant: a path is given away only if nobody answers on it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specd.errors import AddressUnavailable

# The kernel keeps 108 bytes for a path, the last of them a zero.
MAX_PATH_BYTES = 107
# A socket is made under another name in the same folder: a dot and eight letters.
_OTHER_NAME_BYTES = 9
UNIX = "unix:"
_TCP = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/%\s]+):(?P<port>[0-9]{1,5})")


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

    Beside a socket, else in a folder that only this user can enter. Touches nothing. Raises
    AddressUnavailable: no socket can have the path.
    """
    if isinstance(listen, Unix):
        path = listen.path.with_name(f"{listen.path.name}.admin")
    else:
        path = _runtime_folder() / f"{listen}.admin"
    if problem := _problem(path):
        raise AddressUnavailable(
            f"the default admin socket {str(path)!r} {problem}; name another place with "
            "--admin-listen"
        )
    return Unix(path)


def prepare(address: Unix) -> None:
    """Make room for a socket at the path: remove one that nobody listens on any more.

    Raises:
        AddressUnavailable: somebody listens there, it is no socket, or its folder is not ours.
    """
    path = address.path
    if path.parent == _runtime_folder():
        _prepare_runtime_folder(path.parent)
    if not path.parent.is_dir():
        raise AddressUnavailable(f"cannot listen on {address}: there is no folder {path.parent}")
    if len(os.fsencode(path.parent)) + 1 + _OTHER_NAME_BYTES > MAX_PATH_BYTES:
        raise AddressUnavailable(f"cannot listen on {address}: the folder's path is too long")
    try:
        _clear(address)
    except FileNotFoundError:
        return
    except OSError as error:
        raise AddressUnavailable(f"cannot listen on {address}: {error.strerror}") from error


def _clear(address: Unix) -> None:
    path = address.path
    found = path.lstat()
    if not stat.S_ISSOCK(found.st_mode):
        raise AddressUnavailable(f"cannot listen on {address}: the path is not a socket")
    if _somebody_listens(path):
        raise AddressUnavailable(f"cannot listen on {address}: the address is in use")
    # Between the look and the removal another daemon may have put its own socket there.
    aside = path.with_name(f".{secrets.token_hex(4)}")
    path.rename(aside)
    try:
        if _identity(aside.lstat()) != _identity(found):
            with suppress(FileExistsError):
                os.link(aside, path)
            raise AddressUnavailable(f"cannot listen on {address}: the address is in use")
    finally:
        aside.unlink()


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    """Which file it is: numbers are used again, and renaming changes the time of change."""
    return (found.st_dev, found.st_ino, found.st_mtime_ns)


def _unix(text: str) -> Unix:
    name = text.removeprefix(UNIX)
    name = name.removeprefix("//") if name.startswith("///") else name
    if not name.strip("/") or name.startswith("//") or "\0" in name:
        raise AddressUnavailable(f"the address {text!r} should be unix:PATH")
    path = Path(os.path.abspath(name))
    if problem := _problem(path):
        raise AddressUnavailable(f"the path of {text!r} {problem}")
    return Unix(path)


def _problem(path: Path) -> str | None:
    """Why no socket can have the path, as the end of a sentence."""
    try:
        num_bytes = len(str(path).encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    if num_bytes > MAX_PATH_BYTES:
        return f"has more than {MAX_PATH_BYTES} bytes"
    if "%" in str(path):  # `%41` is an A to gRPC
        return "has a %, which gRPC reads as the start of an encoded character"
    return None


def _runtime_folder() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base) and os.path.isdir(base):
        return Path(base) / "specd"
    return Path(tempfile.gettempdir()) / f"specd-{os.getuid()}"


def _prepare_runtime_folder(folder: Path) -> None:
    """Make it for this user alone: in a shared folder another user could have been first."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
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
