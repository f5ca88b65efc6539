"""`specd drain`: sends new requests away from a running daemon and waits for the live ones."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Any

from specd.addresses import default_admin, parse
from specd.cli.request_flags import add_address, check_tls, seconds
from specd.errors import AddressUnavailable


def add_drain(commands: Any) -> None:
    """Add `specd drain` and its flags."""
    drain = commands.add_parser(
        "drain",
        help="refuse new requests, wait for the live ones",
        description="The daemon stays up and refuses new requests until a signal ends it. Ctrl-C "
        "ends the waiting, not the drain. The TLS flags are for an admin address HOST:PORT.",
    )
    add_address(drain)
    drain.add_argument("--admin-address", help="where AdminService is [the daemon's default]")
    drain.add_argument(
        "--timeout", type=seconds, help="seconds after which live requests end with ABORTED"
    )
    drain.add_argument("--json", action="store_true", help="one JSON document")
    drain.set_defaults(run=partial(_drain, drain))


def _drain(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
    try:
        admin = _admin_address(parsed)
    except AddressUnavailable as error:
        return _failed(str(error), parsed)
    check_tls(parser, parsed, admin)
    from specd_client import SpecdClientError  # grpc takes a moment to import; `--help` does not
    from specd_client.sync import Client

    from specd.cli.calling import admin_sentence, credentials

    try:
        with Client(admin, credentials=credentials(parsed), retries=False) as client:
            drained = client.drain(parsed.timeout)
    except SpecdClientError as error:
        return _failed(admin_sentence(error, parsed, admin), parsed)
    if parsed.json:
        print(json.dumps({"finished": drained.finished, "aborted": drained.aborted}))
    else:
        print(f"drained: {drained.finished} ended by themselves, {drained.aborted} were aborted")
    return 0


def _admin_address(parsed: argparse.Namespace) -> str:
    if parsed.admin_address:
        return str(parse(parsed.admin_address))
    return str(default_admin(parse(parsed.address)))


def _failed(message: str, parsed: argparse.Namespace) -> int:
    print(f"specd: {message}", file=sys.stderr)
    if parsed.json:
        print(json.dumps({"error": message}))
    return 1
