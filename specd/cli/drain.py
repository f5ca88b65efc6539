"""`specd drain`: sends new requests away from a running daemon and waits for the live ones."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from specd.addresses import default_admin, parse
from specd.cli.request_flags import add_address
from specd.errors import AddressUnavailable


def add_drain(commands: Any) -> None:
    """Add `specd drain` and its flags."""
    drain = commands.add_parser(
        "drain",
        help="refuse new requests, wait for the live ones",
        description="The daemon stays up and refuses new requests until a signal ends it. Ctrl-C "
        "ends the waiting, not the drain.",
    )
    add_address(drain)
    drain.add_argument("--admin-address", help="where AdminService is [the daemon's default]")
    drain.add_argument(
        "--timeout", type=float, help="seconds after which live requests end with ABORTED"
    )
    drain.add_argument("--json", action="store_true", help="one JSON document")
    drain.set_defaults(run=_drain)


def _drain(parsed: argparse.Namespace) -> int:
    from specd_client import CallFailed  # grpc takes a moment to import; `--help` does without
    from specd_client.sync import Client

    try:
        admin = str(
            parse(parsed.admin_address)
            if parsed.admin_address
            else default_admin(parse(parsed.address))
        )
        with Client(admin, retries=False) as client:
            drained = client.drain(parsed.timeout)
    except (CallFailed, AddressUnavailable) as error:
        print(f"specd: {error}", file=sys.stderr)
        if parsed.json:
            print(json.dumps({"error": str(error)}))
        return 1
    if parsed.json:
        print(json.dumps({"finished": drained.finished, "aborted": drained.aborted}))
    else:
        print(f"drained: {drained.finished} ended by themselves, {drained.aborted} were aborted")
    return 0
