"""Flags of `specd generate` and `specd chat`, most of them the same.

Knows where requests go and how answers are shown; what an answer is, is in `sampling_flags.py`.
Imports no client, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from functools import partial
from typing import Any

from specd.addresses import UNIX, Tcp, parse
from specd.cli.flag_types import text
from specd.cli.sampling_flags import (
    NO_OUTPUT_FLAGS,
    add_output_flags,
    add_sampling_flags,
    check_sampling_flags,
)
from specd.errors import AddressUnavailable

ADDRESS_VARIABLE = "SPECD_ADDRESS"
DEFAULT_ADDRESS = "127.0.0.1:50051"
_STDIN = "-"
_MAX_SECONDS = 10**9  # 31 years; what carries times on the wire ends at 10,000


def add_generate(commands: Any) -> None:
    """Add `specd generate` and its flags."""
    generate = commands.add_parser("generate", help="stream an answer from a running daemon")
    generate.add_argument(
        "text",
        type=text,
        nargs="?",
        help=f"the prompt; {_STDIN} takes it from stdin, without the newline at its end",
    )
    generate.add_argument("--chat", action="store_true", help="send the text as a chat message")
    generate.add_argument("--system", type=text, help="a system message, with --chat")
    generate.add_argument("--json", action="store_true", help="end with one JSON line")
    _add_request_flags(generate)
    add_output_flags(generate)
    generate.set_defaults(run=partial(_generate, generate))


def add_chat(commands: Any) -> None:
    """Add `specd chat` and its flags."""
    chat = commands.add_parser(
        "chat",
        help="talk with a running daemon",
        description="A conversation, a line a message; /help lists the commands. Ctrl-C stops an "
        "answer, Ctrl-D ends. Lines may come from a pipe; the status is then 1 if any failed.",
    )
    chat.add_argument("--system", type=text, help="a system message")
    chat.add_argument("--json", action="store_true", help="one JSON line per answer, no text")
    _add_request_flags(chat)
    chat.set_defaults(run=partial(_chat, chat), **NO_OUTPUT_FLAGS)


def add_address(parser: argparse.ArgumentParser, among: Any = None) -> None:
    """Declare `--address`, whose default comes from the environment, and how it is secured.

    among: the group of flags of which only one may be given, and `--address` is one.
    """
    (among or parser).add_argument(
        "--address",
        type=_address,
        default=os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS,
        help=f"HOST:PORT or unix:PATH; also from {ADDRESS_VARIABLE} [%(default)s]",
    )
    parser.add_argument("--tls", action="store_true", help="use TLS and trust the public roots")
    for name, meaning in _TLS_FILES.items():
        parser.add_argument(f"--tls-{name}", metavar="FILE", help=meaning)


def check_tls(parser: argparse.ArgumentParser, parsed: argparse.Namespace, address: str) -> None:
    """Let a TLS file imply `--tls`; end with a usage error where the flags do not fit together."""
    if (parsed.tls_certificate is None) != (parsed.tls_key is None):
        parser.error("--tls-certificate and --tls-key go together")
    parsed.tls = parsed.tls or parsed.tls_ca is not None or parsed.tls_key is not None
    if parsed.tls and address.startswith(UNIX):
        parser.error(f"TLS is for HOST:PORT; {address} is a socket, which has none")


def seconds(value: str) -> float:
    """A time that can be waited for. Raises ArgumentTypeError."""
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not 0 <= found <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{value!r} is no number of seconds from 0 to 10^9")
    return found


def _generate(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
    if parsed.system is not None and not parsed.chat:
        parser.error("--system goes with --chat")
    check_tls(parser, parsed, parsed.address)
    check_sampling_flags(parser, parsed)
    if parsed.text is None:
        parser.error(f"there is no prompt: give its text, or {_STDIN} to take it from stdin")
    if parsed.text == _STDIN:
        parsed.text = _from_stdin(parser)
    from specd.cli.generate import run  # grpc takes a moment to import; `--help` does without

    return run(parsed)


def _from_stdin(parser: argparse.ArgumentParser) -> str:
    if sys.stdin is None:
        parser.error("the prompt is to come from stdin, which is closed")
    try:
        given = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        parser.error(f"the prompt on stdin is not UTF-8: its byte {error.start} is wrong")
    return given.removesuffix("\r\n" if given.endswith("\r\n") else "\n")


def _chat(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
    check_tls(parser, parsed, parsed.address)
    check_sampling_flags(parser, parsed)
    from specd.cli.chat import run

    return run(parsed)


def _add_request_flags(parser: argparse.ArgumentParser) -> None:
    """Declare where requests go, how they are answered and how an answer is shown."""
    add_address(parser)
    parser.add_argument(
        "--show-drafts",
        action="store_true",
        help="colour the tokens that a drafter guessed, and end with figures",
    )
    parser.add_argument("--no-speculation", action="store_true", help="plain decoding")
    parser.add_argument(
        "--drafter", type=text, action="append", help="a drafter of the daemon; repeatable"
    )
    add_sampling_flags(parser)
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="longest for one answer")


def _address(value: str) -> str:
    """An address to call. Raises ArgumentTypeError."""
    try:
        found = parse(value)
    except AddressUnavailable as error:
        raise argparse.ArgumentTypeError(f"{error} ({ADDRESS_VARIABLE} is the default)") from None
    if isinstance(found, Tcp) and found.port == 0:
        raise argparse.ArgumentTypeError(f"{value!r}: nobody can be called at port 0")
    return str(found)


_TLS_FILES = {
    "ca": "PEM file of whoever signs the daemon's certificate, instead of the public roots",
    "certificate": "PEM file to show to a daemon that asks for one; needs --tls-key",
    "key": "PEM file, the key of that certificate",
}
