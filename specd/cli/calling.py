"""How a command reaches the daemon, and the sentence for a call that failed.

Knows the flags of an address. gRPC's own account of a daemon that is not there is long and names
nothing that a user typed; here it becomes a sentence that does.

Invariant: a sentence is one line; a refusal that the daemon gave a reason for stays in its words.
"""

from __future__ import annotations

import argparse
import re

from specd_client import DeadlineExceeded, NotReady, SpecdClientError, tls_credentials
from specd_client.connection import Credentials

_ELSEWHERE = "start the daemon with `specd serve`, or give its address with --address"
# The part of a failed handshake that says what is wrong; what comes behind it may say "OK".
_TLS_PROBLEM = re.compile(r"OPENSSL_internal:([A-Z_]+)")
# A server that wants TLS hangs up on plain text; one that is not there does neither.
_HUNG_UP = ("Socket closed", "Connection reset", "SETTINGS", "Broken pipe", "GOAWAY")


def credentials(parsed: argparse.Namespace) -> Credentials | None:
    """What the TLS flags ask for; None for plain text. Raises CredentialsUnusable."""
    if not parsed.tls:
        return None
    return tls_credentials(ca=parsed.tls_ca, certificate=parsed.tls_certificate, key=parsed.tls_key)


def sentence(error: SpecdClientError, parsed: argparse.Namespace, *, began: bool = False) -> str:
    """What to tell of a call to `parsed.address`. began: some of an answer had come."""
    if isinstance(error, NotReady) and not error.reason:
        if began:
            return f"the connection to {parsed.address} broke off ({_cause(error, parsed)})"
        return f"nobody answers at {parsed.address} ({_cause(error, parsed)}); {_ELSEWHERE}"
    if isinstance(error, DeadlineExceeded) and not error.reason and parsed.timeout is not None:
        late = f"the answer was not complete within {parsed.timeout:g} s, the --timeout"
        return f"{late} [{error.code.name}]"
    return str(error)


def admin_sentence(error: SpecdClientError, parsed: argparse.Namespace, admin: str) -> str:
    """What to tell of a call to an admin address."""
    if not isinstance(error, NotReady) or error.reason:
        return str(error)
    # The default follows from how the daemon itself spells its address, so a guess may miss it.
    return (
        f"nobody answers at the admin address {admin} ({_cause(error, parsed)}); "
        "the daemon's log and ready file tell the right one, for --admin-address"
    )


def _cause(error: NotReady, parsed: argparse.Namespace) -> str:
    """The last link of gRPC's chain of causes."""
    found = _TLS_PROBLEM.search(error.message)
    if found is not None:
        return f"TLS: {found[1].replace('_', ' ').lower()}"
    last = error.message.rstrip("]. ").rpartition(": ")[2]
    if not parsed.tls and any(sign in error.message for sign in _HUNG_UP):
        return f"{last}; a daemon with TLS needs --tls or --tls-ca"
    return last
