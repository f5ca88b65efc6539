"""Addresses are read as written, and a path is given away only if nobody answers on it."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from specd.addresses import Tcp, Unix, default_admin, parse, prepare
from specd.errors import AddressUnavailable


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", Tcp("127.0.0.1", 0)),
        ("localhost:65535", Tcp("localhost", 65535)),
        ("[::1]:50051", Tcp("[::1]", 50051)),
        ("unix:/run/specd.sock", Unix(Path("/run/specd.sock"))),
        ("unix:///run/specd.sock", Unix(Path("/run/specd.sock"))),
        ("unix:here.sock", Unix(Path.cwd() / "here.sock")),
        ("unix:../a b.sock", Unix(Path.cwd().parent / "a b.sock")),
    ],
)
def test_an_address_is_read_and_written(text: str, address: Tcp | Unix) -> None:
    assert parse(text) == address
    assert parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "localhost", ":50051", "localhost:", "localhost:65536", "::1:50051", "a/b:1"),
        *(
            "unix:",
            "unix:/",
            "unix://host/path",
            "unix:a\0b",
            "unix:/" + "x" * 107,
            "http://localhost:1",
        ),
        *("unix:/a/%41.sock", "unix:/\udcff", "a%41:1", "a b:1", "localhost:\u0661"),
    ],
)
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(AddressUnavailable):
        parse(text)


def test_each_address_has_an_admin_socket_of_its_own(path: Path) -> None:
    texts = ("127.0.0.1:1", "127.0.0.1:2", "[::1]:1", "unix:/srv/a", "unix:/srv/b")
    sockets = [str(default_admin(parse(text))) for text in texts]
    assert sockets[0] == f"unix:{path.parent}/specd/127.0.0.1:1.admin"
    assert sockets[3] == "unix:/srv/a.admin"
    assert len(set(sockets)) == len(sockets)


@pytest.mark.parametrize("folder", ["x" * 100, "%41", "\udcff"])
def test_an_admin_socket_that_cannot_be_is_told_with_the_flag_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / folder).mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / folder))
    with pytest.raises(AddressUnavailable, match="--admin-listen"):
        default_admin(parse("127.0.0.1:1"))


def test_an_admin_socket_beside_a_long_path_is_told_with_the_flag_that_helps() -> None:
    with pytest.raises(AddressUnavailable, match="more than 107 bytes.*--admin-listen"):
        default_admin(parse("unix:/" + "x" * 101))


def test_a_runtime_folder_that_is_not_there_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    admin = default_admin(parse("127.0.0.1:1"))
    assert admin.path.parent == Path(tempfile.gettempdir()) / f"specd-{os.getuid()}"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "s"


def test_a_free_path_and_a_socket_that_somebody_left_behind_may_be_used(path: Path) -> None:
    prepare(Unix(path))
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    prepare(Unix(path))
    assert not path.exists()


def test_a_socket_that_somebody_listens_on_is_in_use(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(AddressUnavailable, match="in use"):
            prepare(Unix(path))


def test_a_socket_that_comes_between_the_look_and_the_removal_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    with socket.socket(socket.AF_UNIX) as faster:
        rename = Path.rename

        def late(self: Path, target: Path) -> Path:
            self.unlink()
            faster.bind(str(self))
            faster.listen()
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", late)
        with pytest.raises(AddressUnavailable, match="in use"):
            prepare(Unix(path))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert os.listdir(path.parent) == ["s"]


def test_what_is_no_socket_stays(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(AddressUnavailable, match="not a socket"):
        prepare(Unix(path))
    assert path.read_text() == "mine"


def test_a_path_in_no_folder_is_told(path: Path) -> None:
    with pytest.raises(AddressUnavailable, match="no folder"):
        prepare(Unix(path / "s"))


def test_the_folder_of_admin_sockets_is_made_for_this_user_alone(path: Path) -> None:
    admin = default_admin(parse("127.0.0.1:1"))
    prepare(admin)
    assert admin.path.parent.stat().st_mode & 0o777 == 0o700
    prepare(admin)


def test_a_folder_that_others_can_enter_is_not_used(path: Path) -> None:
    admin = default_admin(parse("127.0.0.1:1"))
    admin.path.parent.mkdir()
    os.chmod(admin.path.parent, 0o755)
    with pytest.raises(AddressUnavailable, match="--admin-listen"):
        prepare(admin)
