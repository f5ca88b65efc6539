"""Flags of `specd generate` and `specd chat`, most of them the same.

Knows argparse and what a wire field can hold; imports no client, so that `--help` is quick. Leaves
defaults and limits to the daemon: a flag that is not given is not sent.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

from specd.addresses import Tcp, parse
from specd.errors import AddressUnavailable

ADDRESS_VARIABLE = "SPECD_ADDRESS"
DEFAULT_ADDRESS = "127.0.0.1:50051"


def add_generate(commands: Any) -> None:
    """Add `specd generate` and its flags."""
    generate = commands.add_parser("generate", help="stream an answer from a running daemon")
    generate.add_argument("text", type=_text, help="the prompt")
    generate.add_argument("--chat", action="store_true", help="send the text as a chat message")
    generate.add_argument("--system", type=_text, help="a system message, with --chat")
    generate.add_argument("--json", action="store_true", help="end with one JSON line")
    _add_request_flags(generate)
    generate.set_defaults(run=partial(_generate, generate))


def add_chat(commands: Any) -> None:
    """Add `specd chat` and its flags."""
    chat = commands.add_parser(
        "chat",
        help="talk with a running daemon",
        description="A conversation, a line a message; /help lists the commands. Ctrl-C stops an "
        "answer, Ctrl-D ends. Lines may come from a pipe; the status is then 1 if any failed.",
    )
    chat.add_argument("--system", type=_text, help="a system message")
    chat.add_argument("--json", action="store_true", help="one JSON line per answer, no text")
    _add_request_flags(chat)
    chat.set_defaults(run=_chat)


def add_address(parser: argparse.ArgumentParser) -> None:
    """Declare `--address`, whose default comes from the environment."""
    parser.add_argument(
        "--address",
        type=_address,
        default=os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS,
        help=f"HOST:PORT or unix:PATH; also from {ADDRESS_VARIABLE} [%(default)s]",
    )


def _generate(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
    if parsed.system is not None and not parsed.chat:
        parser.error("--system goes with --chat")
    from specd.cli.generate import run  # grpc takes a moment to import; `--help` does without

    return run(parsed)


def _chat(parsed: argparse.Namespace) -> int:
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
        "--drafter", type=_text, action="append", help="a drafter of the daemon; repeatable"
    )
    for flag, kind, meaning in _NUMBERS:
        parser.add_argument(flag, type=kind, metavar="N", help=meaning)
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="longest for one answer")
    parser.add_argument("--stop", type=_text, action="append", help="a stop string; repeatable")
    parser.add_argument("--ignore-eos", action="store_true", help="go on past the end token")


def _address(value: str) -> str:
    """An address to call. Raises ArgumentTypeError."""
    try:
        found = parse(value)
    except AddressUnavailable as error:
        raise argparse.ArgumentTypeError(f"{error} ({ADDRESS_VARIABLE} is the default)") from None
    if isinstance(found, Tcp) and found.port == 0:
        raise argparse.ArgumentTypeError(f"{value!r}: nobody can be called at port 0")
    return str(found)


def _text(value: str) -> str:
    """What the wire can carry: an argument that is no UTF-8 holds lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("is not UTF-8") from None
    return value


def _uint32(value: str) -> int:
    return _uint(value, 32)


def _uint64(value: str) -> int:
    return _uint(value, 64)


def _uint(value: str, bits: int) -> int:
    """A whole number that a wire field of so many bits holds."""
    if not (value.isdecimal() and int(value) < 1 << bits):
        raise argparse.ArgumentTypeError(f"{value!r} is no whole number from 0 to 2^{bits} - 1")
    return int(value)


_NUMBERS = (
    ("--max-new-tokens", _uint32, "tokens of an answer at most"),
    ("--temperature", float, "0 takes the likeliest token"),
    ("--top-k", _uint32, "choose from the N likeliest tokens"),
    ("--top-p", float, "choose from the likeliest tokens that have this probability together"),
    ("--min-p", float, "choose from tokens with this fraction of the likeliest one's probability"),
    ("--seed", _uint64, "the same one gives the same answer"),
    ("--max-draft-tokens", _uint32, "draft tokens in a step at most"),
)
