"""TLS for TCP addresses: certificates from files, read again when they change.

Knows PEM files and grpc's credentials. Invariant: a new pair of files is used only if it is sound;
until then connections get the one before.
"""

from __future__ import annotations

import logging
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

import grpc

from specd.errors import StartFailed

_log = logging.getLogger("specd.server")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. client_ca: whoever signs the clients that may connect; None takes all."""

    certificate: Path
    key: Path
    client_ca: Path | None


class Certificates:
    """The files as they are now."""

    def __init__(self, files: TlsFiles) -> None:
        """Read and check the files. Raises StartFailed."""
        self._files = files
        self._stamp = self._stamps()
        self._current = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """For any number of ports; new connections see new files."""
        return grpc.dynamic_ssl_server_credentials(
            self._current,
            self._fetch,
            require_client_authentication=self._files.client_ca is not None,
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration:
        """Called by gRPC, on a thread of its own, for each connection."""
        try:
            stamp = self._stamps()
            if stamp != self._stamp:
                self._current, self._stamp = self._read(), stamp
                _log.info("new certificates from %s", self._files.certificate)
        except StartFailed as error:
            _log.warning("the certificates stay as they were: %s", error)
        return self._current

    def _stamps(self) -> list[tuple[int, int]]:
        try:
            found = [path.stat() for path in self._paths()]
        except (OSError, ValueError) as error:
            name = getattr(error, "filename", None) or self._files.certificate
            reason = getattr(error, "strerror", None) or error
            raise StartFailed(f"cannot read {name!s}: {reason}") from error
        for path, status in zip(self._paths(), found, strict=True):
            if not stat.S_ISREG(status.st_mode):  # a pipe would make every connection wait
                raise StartFailed(f"cannot use the certificates: {path} is no file")
        return [(status.st_mtime_ns, status.st_size) for status in found]

    def _paths(self) -> list[Path]:
        files = self._files
        return [files.certificate, files.key, *([files.client_ca] if files.client_ca else [])]

    def _refuse_to_ask(self) -> str:
        """OpenSSL would ask at the terminal for the words of an encrypted key, and wait."""
        raise StartFailed(f"the key {self._files.key} is encrypted: decrypt it first")

    def _read(self) -> grpc.ServerCertificateConfiguration:
        files = self._files
        try:
            # gRPC says nothing of what is wrong with a file; the standard library does.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files.certificate, files.key, self._refuse_to_ask)
            if files.client_ca:
                context.load_verify_locations(files.client_ca)
            pair = (files.key.read_bytes(), files.certificate.read_bytes())
            root = files.client_ca.read_bytes() if files.client_ca else None
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(map(str, self._paths()))
            raise StartFailed(f"cannot use the certificates {names}: {error}") from error
        return grpc.ssl_server_certificate_configuration([pair], root)
