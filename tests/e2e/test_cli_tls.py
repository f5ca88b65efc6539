"""The commands and a daemon with TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.e2e.test_start import free_port
from tests.support.commands import specd
from tests.support.daemon import Daemon, spawned

SHORT = ("--max-new-tokens", "1", "x")


class Files:
    """PEM files of an authority, of the daemon's certificate and of a client's."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca, self.junk = folder / "ca.pem", folder / "junk.pem"
        self.daemon = self._issue(authority, folder / "daemon")
        self.client = self._issue(authority, folder / "client")
        authority.cert_pem.write_to_path(self.ca)
        self.junk.write_text("no certificate")

    @staticmethod
    def _issue(authority: trustme.CA, path: Path) -> tuple[Path, Path]:
        made = authority.issue_cert("127.0.0.1")
        certificate, key = path.with_suffix(".pem"), path.with_suffix(".key")
        made.private_key_pem.write_to_path(key)
        for blob in made.cert_chain_pems:
            blob.write_to_path(certificate, append=True)
        return certificate, key


def _pair(files: tuple[Path, Path]) -> tuple[str, ...]:
    return ("--tls-certificate", str(files[0]), "--tls-key", str(files[1]))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(toy: Path, files: Files) -> Iterator[Daemon]:
    """Clients have to show a certificate, operators too."""
    flags = (*_pair(files.daemon), "--tls-client-ca", str(files.ca))
    with spawned(toy, *flags, "--admin-listen", f"127.0.0.1:{free_port()}") as daemon:
        daemon.wait_ready()
        yield daemon


def test_all_commands_reach_it_with_its_authority_and_a_certificate_of_their_own(
    secure: Daemon, files: Files
) -> None:
    flags = ("--tls-ca", str(files.ca), *_pair(files.client))
    here = ("--address", secure.address)
    for done in (
        specd("generate", *here, *flags, *SHORT),
        specd("chat", *here, *flags, *SHORT[:-1], stdin=b"Hi\n"),
        specd("drain", "--admin-address", secure.admin_address, *flags),
    ):
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout


def test_plain_text_is_one_sentence_that_names_the_flags(toy: Path, files: Files) -> None:
    with spawned(toy, *_pair(files.daemon)) as daemon:
        daemon.wait_ready()
        here = ("--address", daemon.address)
        done = specd("generate", *here, *SHORT)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"nobody answers at {daemon.address} (" in done.stderr
        assert "a daemon with TLS needs --tls or --tls-ca" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        done = specd("generate", *here, "--tls", *SHORT)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert "(TLS: certificate verify failed)" in done.stderr
        assert specd("generate", *here, "--tls-ca", str(files.ca), *SHORT).returncode == 0


@pytest.mark.parametrize("command", [("generate", "x"), ("chat",), ("drain",)])
def test_a_file_that_cannot_be_used_is_named(command: tuple[str, ...], files: Files) -> None:
    for flags, told in (
        (("--tls-ca", "/no/ca.pem"), "cannot read /no/ca.pem: No such file or directory"),
        (("--tls-ca", str(files.junk)), f"cannot use {files.junk}: "),
        (_pair((files.client[0], Path("/no/key"))), "cannot read /no/key: No such file"),
        (
            _pair((files.client[0], files.daemon[1])),
            f"cannot use {files.client[0]} and {files.daemon[1]}: key values mismatch",
        ),
    ):
        here = ("--address", "127.0.0.1:1")
        if command == ("drain",):
            here = ("--admin-address", "127.0.0.1:1")
        done = specd(*command, *here, *flags)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"specd: {told}")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [("generate", "x"), ("chat",), ("drain",)])
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--tls-certificate", "c.pem"), "--tls-certificate and --tls-key go together"),
        (("--tls-key", "k.pem"), "--tls-certificate and --tls-key go together"),
        (("--tls", "--address", "unix:/run/specd.sock"), "is a socket, which has none"),
        (("--tls-ca", "a.pem", "--address", "unix:/run/specd.sock"), "is a socket"),
    ],
)
def test_flags_that_do_not_fit_together_are_wrong_usage(
    command: tuple[str, ...], flags: tuple[str, ...], told: str
) -> None:
    done = specd(*command, *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr.splitlines()[-1]
