"""TLS: a client trusts what its credentials say, and nothing else."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from specd_client import Client, NotReady, sync

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
