"""TLS: a client trusts what its credentials say, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from specd_client import Client, CredentialsUnusable, NotReady, sync, tls_credentials

from tests.support.scripted_server import Scripted, listening, play

# A certificate of localhost and 127.0.0.1, signed by itself, valid from 2020 to 2120.
CERTIFICATE = b"""\
-----BEGIN CERTIFICATE-----
MIIBaDCCAQ2gAwIBAgIBATAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAlsb2NhbGhv
c3QwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBQxEjAQBgNVBAMM
CWxvY2FsaG9zdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABBPZBgK0sqrTPcBf
+77vQ6ySgts+Cc1no379uYMOAyiUp4d4uyyPdUM33K7HTyEZjuvZ1GlOzSEB1YMj
GzGEZgajTjBMMA8GA1UdEwEB/wQFMAMBAf8wGgYDVR0RBBMwEYIJbG9jYWxob3N0
hwR/AAABMB0GA1UdDgQWBBQlwSv/QbFdEbmTp0VxaYPubRun+jAKBggqhkjOPQQD
AgNJADBGAiEApFmyd6cTJ2M7ZahfK2s4DmXY92awGpxfCZD/bOP6K/4CIQDhviKv
xuiREH04tPSxIiwl6e51VD47bpxlrL51FCj27A==
-----END CERTIFICATE-----
"""
KEY = b"""\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgIywKwJs6/U+PLiJk
fGk7GFUNmJ5h2I7mO6l9ESP9NPOhRANCAAQT2QYCtLKq0z3AX/u+70OskoLbPgnN
Z6N+/bmDDgMolKeHeLssj3VDN9yux08hGY7r2dRpTs0hAdWDIxsxhGYG
-----END PRIVATE KEY-----
"""
SERVER_SIDE = grpc.ssl_server_credentials([(KEY, CERTIFICATE)])
TRUSTING = grpc.ssl_channel_credentials(root_certificates=CERTIFICATE)


@pytest.mark.asyncio
async def test_credentials_secure_the_channel() -> None:
    async with listening(Scripted(play()), credentials=SERVER_SIDE) as address:
        async with Client(address, credentials=TRUSTING) as client:
            assert (await client.server_info()).version == "1.2.3"
        with sync.Client(address, credentials=TRUSTING) as blocking:
            assert (await asyncio.to_thread(blocking.server_info)).version == "1.2.3"


@pytest.mark.parametrize("credentials", [None, grpc.ssl_channel_credentials()], ids=["no", "other"])
@pytest.mark.asyncio
async def test_a_client_with_other_credentials_reaches_nobody(
    credentials: grpc.ChannelCredentials | None,
) -> None:
    async with listening(Scripted(play()), credentials=SERVER_SIDE) as address:
        async with Client(address, credentials=credentials, retries=False) as client:
            with pytest.raises(NotReady):
                await client.server_info(timeout_s=10)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The certificate and the key."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_bytes(CERTIFICATE)
    key.write_bytes(KEY)
    return certificate, key


@pytest.mark.asyncio
async def test_credentials_come_from_files(files: tuple[Path, Path]) -> None:
    certificate, key = files
    server = grpc.ssl_server_credentials([(KEY, CERTIFICATE)], CERTIFICATE, True)
    own = tls_credentials(ca=certificate, certificate=str(certificate), key=key)
    async with listening(Scripted(play()), credentials=server) as address:
        async with Client(address, credentials=own, retries=False) as client:
            assert (await client.server_info(timeout_s=10)).version == "1.2.3"
        for other in (tls_credentials(ca=certificate), tls_credentials()):
            async with Client(address, credentials=other, retries=False) as client:
                with pytest.raises(NotReady):
                    await client.server_info(timeout_s=10)


def test_a_file_that_cannot_be_used_is_named(files: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = files
    none, junk = tmp_path / "none.pem", tmp_path / "junk.pem"
    junk.write_bytes(b"\xff\x00")
    with pytest.raises(CredentialsUnusable, match="cannot read .*none.pem: No such file"):
        tls_credentials(ca=none)
    with pytest.raises(CredentialsUnusable, match="cannot use .*junk.pem: it is not PEM"):
        tls_credentials(ca=junk)
    with pytest.raises(CredentialsUnusable, match="cannot use .*key.pem: "):
        tls_credentials(ca=key)
    with pytest.raises(CredentialsUnusable, match="cannot read .*none.pem"):
        tls_credentials(certificate=certificate, key=none)
    with pytest.raises(CredentialsUnusable, match="cannot use .*certificate.pem and .*junk.pem"):
        tls_credentials(certificate=certificate, key=junk)


def test_a_certificate_without_its_key_is_an_error_of_the_program(
    files: tuple[Path, Path],
) -> None:
    for half in ({"certificate": files[0]}, {"key": files[1]}):
        with pytest.raises(TypeError, match="go together"):
            tls_credentials(**half)
