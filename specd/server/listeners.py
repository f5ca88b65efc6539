"""Everything that the daemon listens on: addresses for clients, and one for operators.

Knows the order of binding and what is published about it. Invariant: all addresses are bound or
none is; the ready file exists exactly while calls are admitted.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import anyio

from specd.addresses import Address, default_admin
from specd.errors import StartFailed
from specd.server.binding import remove
from specd.server.front import Front
from specd.server.listener import Connections, admin_listener, public_listener

_log = logging.getLogger("specd.app")


class Listeners:
    """The listeners of one daemon. addresses, admin_address: as they are really bound."""

    def __init__(
        self, front: Front, connections: Connections, *, model: str, ready_file: Path | None
    ) -> None:
        self.addresses: Sequence[Address] = ()
        self.admin_address: Address | None = None
        self._public = public_listener(front, connections)
        self._admin = admin_listener(front, connections)
        self._model = model
        self._ready_file = ready_file

    async def start(self, listen: Sequence[Address], admin: Address | str) -> None:
        """Bind all. admin: an address, "auto" for the default socket, "none".

        Raises:
            AddressUnavailable: and nothing is bound.
            StartFailed: the ready file is something else than a file.
        """
        if self._ready_file is not None and not _may_be_written(self._ready_file):
            raise StartFailed(f"the ready file {self._ready_file} is no file that can be written")
        try:
            self.addresses = await self._public.start(listen)
            if admin == "auto":
                admin = default_admin(self.addresses[0])
            if not isinstance(admin, str):
                (self.admin_address,) = await self._admin.start([admin])
                self._admin.set_serving(True)
        except BaseException:
            await self.stop(0)
            raise
        # Only now: a daemon that has these addresses already may have the file, too.
        if self._ready_file is not None:
            remove(self._ready_file)

    def tell(self, admitting: bool) -> None:
        """Publish whether calls are admitted: health and the ready file. Raises StartFailed."""
        self._public.set_serving(admitting)
        if self._ready_file is not None and admitting:
            _write(self._ready_file, self._document())
        elif self._ready_file is not None:
            remove(self._ready_file)
        if admitting:
            _log.info("serving %s on %s", self._model, ", ".join(map(str, self.addresses)))
            _log.info("admin calls on %s", self.admin_address or "no address")

    async def stop(self, grace_s: float) -> None:
        """Close all addresses; handlers may end for `grace_s`."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._admin.stop, grace_s)
            tasks.start_soon(self._public.stop, grace_s)

    def _document(self) -> dict[str, object]:
        return {
            "address": str(self.addresses[0]),
            "addresses": [str(address) for address in self.addresses],
            "admin_address": None if self.admin_address is None else str(self.admin_address),
            "pid": os.getpid(),
        }


def _write(path: Path, document: dict[str, object]) -> None:
    """Write whole or not at all: whoever waits for the file may read it at once."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        partial.write_text(json.dumps(document) + "\n")
        partial.replace(path)
    except OSError as error:
        remove(partial)
        raise StartFailed(f"cannot write the ready file {path}: {error.strerror}") from error


def _may_be_written(path: Path) -> bool:
    """Whether it can be replaced and removed: a device or a folder cannot be meant."""
    try:
        return path.is_file() or not path.exists()
    except OSError:  # no file can have this name
        return False
