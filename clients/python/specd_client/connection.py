"""What both clients know of their server: address, credentials, metadata and channel options.

Knows how a channel is opened, in either form, and secured; makes no call.

Invariant: what a caller sets wins over what this package would set.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc

from specd_client.errors import CredentialsUnusable

Credentials = grpc.ChannelCredentials
PemFile = str | PathLike[str]
Metadata = Sequence[tuple[str, str | bytes]]
Options = Sequence[tuple[str, Any]]
Channel = TypeVar("Channel", grpc.Channel, grpc.aio.Channel)

# A copy of proto/service_config.json, which every language can use.
SERVICE_CONFIG = files("specd_client").joinpath("service_config.json").read_text("utf-8")
# By default gRPC tries a server that was not there again after 1 s, and up to 2 min later.
RECONNECT: Options = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def tls_credentials(
    *, ca: PemFile | None = None, certificate: PemFile | None = None, key: PemFile | None = None
) -> Credentials:
    """Returns the `credentials` of a client, from PEM files.

    ca: whoever signs the server's certificate; None trusts the public roots. certificate, key: the
    client's own, for a server that asks for them; they go together.

    Raises:
        CredentialsUnusable: a file cannot be read or is not PEM, or the key is another one's.
        TypeError: one of certificate and key is missing.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # says what is wrong, which gRPC does not
    root = None
    if ca is not None:
        with _naming(ca):
            root = Path(ca).read_bytes()
            context.load_verify_locations(cadata=root.decode("ascii"))
    if certificate is None and key is None:
        return grpc.ssl_channel_credentials(root)
    if certificate is None or key is None:
        raise TypeError("certificate and key go together")
    with _naming(certificate):
        chain = Path(certificate).read_bytes()
    with _naming(key):
        secret = Path(key).read_bytes()
    with _naming(f"{certificate} and {key}"):
        # gRPC takes no key with a password; without one here, somebody would be asked for it.
        context.load_cert_chain(certificate, key, password="")
    return grpc.ssl_channel_credentials(root, secret, chain)


@contextmanager
def _naming(file: PemFile) -> Iterator[None]:
    """Name the file that something is wrong with."""
    try:
        yield
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise CredentialsUnusable(f"cannot use {file}: {reason}") from error
    except OSError as error:
        raise CredentialsUnusable(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise CredentialsUnusable(f"cannot use {file}: it is not PEM") from error


def _options(own: Options, *, retries: bool) -> Options:
    """Returns the options of a channel: `own`, and the package's where `own` has none."""
    policy: Options = (("grpc.service_config", SERVICE_CONFIG),) if retries else ()
    names = {name for name, _ in own}  # of an option that comes twice, gRPC promises nothing
    return (*own, *(option for option in (*RECONNECT, *policy) if option[0] not in names))


class Connection(Generic[Channel]):
    """A server, and the channel to it while the client is open. The clients say what it takes."""

    def __init__(
        self,
        address: str,
        *,
        credentials: Credentials | None = None,
        metadata: Metadata = (),
        channel_options: Options = (),
        retries: bool = True,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._metadata = tuple(metadata)
        self._options = _options(channel_options, retries=retries)
        self._channel: Channel | None = None

    @property
    def channel(self) -> Channel:
        """The channel, for stubs of `specd_client.v1`. Raises RuntimeError where it is closed."""
        if self._channel is None:
            raise RuntimeError("open the client first: `async with`, or `with` for the sync one")
        return self._channel

    def _open(self, insecure: Callable[..., Channel], secure: Callable[..., Channel]) -> None:
        if self._channel is not None:
            raise RuntimeError("this client is open already")
        if self._credentials is None:
            self._channel = insecure(self._address, self._options)
        else:
            self._channel = secure(self._address, self._credentials, self._options)

    def _close(self) -> Channel:
        """Forgets the channel and returns it, for closing."""
        channel, self._channel = self.channel, None
        return channel
