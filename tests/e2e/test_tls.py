"""TLS: clients see a certificate, show one where they have to, and new files need no restart."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from specd_client import Client, NotReady

from tests.e2e.calls import PATIENCE_S, answer
from tests.support.daemon import Daemon, environment, spawned

START_FAILED = 3


class Authority:
    """A certificate authority and the files that it makes."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self.file = folder / "ca.pem"
        self.certificate, self.key = folder / "certificate.pem", folder / "key.pem"
        self._ca.cert_pem.write_to_path(self.file)
        self.issue()

    def issue(self) -> None:
        """Make a new certificate for this machine."""
        made = self._ca.issue_cert("localhost", "127.0.0.1")
        for path, blob in ((self.key, made.private_key_pem), (self.certificate, _chain(made))):
            partial = path.with_suffix(".part")
            partial.write_bytes(blob if isinstance(blob, bytes) else blob.bytes())
            partial.replace(path)

    def encrypt(self) -> None:
        """Put a passphrase on the key."""
        key = serialization.load_pem_private_key(self.key.read_bytes(), None)
        pem = serialization.Encoding.PEM
        how = serialization.BestAvailableEncryption(b"words")
        traditional = serialization.PrivateFormat.TraditionalOpenSSL
        self.key.write_bytes(key.private_bytes(pem, traditional, how))

    def client(self, *, with_certificate: bool = False) -> grpc.ChannelCredentials:
        own = self._ca.issue_cert("client")
        pair = (own.private_key_pem.bytes(), _chain(own)) if with_certificate else (None, None)
        return grpc.ssl_channel_credentials(self._ca.cert_pem.bytes(), *pair)


def _chain(made: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in made.cert_chain_pems)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextmanager
def _secure(model: Path, authority: Authority, *flags: str) -> Iterator[Daemon]:
    files = ("--tls-certificate", str(authority.certificate), "--tls-key", str(authority.key))
    # An address that others can reach: with TLS nothing else has to be said.
    with spawned(model, *files, *flags, listen="0.0.0.0:0") as daemon:
        daemon.wait_ready()
        daemon.address = daemon.address.replace("0.0.0.0", "127.0.0.1")
        yield daemon
        daemon.terminate()
        assert daemon.wait_exit() == 0


async def _works(address: str, credentials: grpc.ChannelCredentials | None) -> bool:
    async with Client(address, credentials=credentials, retries=False) as client:
        try:
            return (await answer(client, max_new_tokens=1)).usage.completion_tokens == 1
        except NotReady:
            return False


@pytest.mark.asyncio
async def test_a_client_that_trusts_the_authority_is_served_and_plain_text_is_not(
    toy: Path, authority: Authority
) -> None:
    with _secure(toy, authority) as daemon:
        assert await _works(daemon.address, authority.client())
        assert not await _works(daemon.address, None)
        assert "andshake" not in daemon.log, "gRPC's own lines are not for the log"


@pytest.mark.asyncio
async def test_where_clients_have_to_show_a_certificate_others_are_sent_away(
    toy: Path, authority: Authority
) -> None:
    with _secure(toy, authority, "--tls-client-ca", str(authority.file)) as daemon:
        assert await _works(daemon.address, authority.client(with_certificate=True))
        assert not await _works(daemon.address, authority.client())


@pytest.mark.asyncio
async def test_new_files_are_used_for_new_connections_and_broken_ones_are_not(
    toy: Path, authority: Authority
) -> None:
    with _secure(toy, authority) as daemon:
        before = await _certificate(daemon)
        _break(authority.certificate)
        assert await _certificate(daemon) == before
        assert "the certificates stay as they were" in daemon.log
        authority.issue()
        assert await _certificate(daemon) != before


@pytest.mark.asyncio
async def test_an_encrypted_key_asks_nobody_while_the_daemon_runs(
    toy: Path, authority: Authority
) -> None:
    with _secure(toy, authority) as daemon:
        before = await _certificate(daemon)
        authority.encrypt()
        assert await _certificate(daemon) == before
        assert f"stay as they were: the key {authority.key} is encrypted" in daemon.log


def test_an_encrypted_key_asks_nobody_at_the_start(toy: Path, authority: Authority) -> None:
    authority.encrypt()
    files = ("--tls-certificate", str(authority.certificate), "--tls-key", str(authority.key))
    command = [sys.executable, "-m", "specd.cli.main", "serve", "--model", str(toy), *files]
    silent, pipe = os.pipe()  # whoever reads it waits
    try:
        done = subprocess.run(
            [*command, "--listen", "127.0.0.1:0"],
            stdin=silent,
            capture_output=True,
            text=True,
            env=environment(),
            start_new_session=True,  # no terminal to ask at
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        os.close(silent)
        os.close(pipe)
    assert done.returncode == START_FAILED
    assert done.stderr == f"specd: the key {authority.key} is encrypted: decrypt it first\n"


def _break(path: Path) -> None:
    path.write_text("no certificate")
    os.utime(path, ns=(1, 1))


async def _certificate(daemon: Daemon) -> str:
    """What the daemon shows to a new connection."""
    host, _, port = daemon.address.rpartition(":")
    return await asyncio.to_thread(
        ssl.get_server_certificate, (host, int(port)), timeout=PATIENCE_S
    )


def test_files_that_cannot_be_used_are_told(toy: Path, authority: Authority) -> None:
    for certificate, key, words in (
        ("/no/such.pem", authority.key, "No such file"),
        (authority.file, authority.key, "key values mismatch"),
        (authority.key, authority.key, "cannot use the certificates"),
        ("/dev/zero", authority.key, "no file"),
    ):
        with spawned(toy, "--tls-certificate", str(certificate), "--tls-key", str(key)) as daemon:
            assert daemon.wait_exit() == START_FAILED
            last = daemon.log.splitlines()[-1]
            assert last.startswith("specd: cannot ")
            assert words.lower() in last.lower()
