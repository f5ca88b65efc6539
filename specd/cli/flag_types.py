"""Types of flags whose values go to the wire: what its fields can hold.

Knows argparse and the kinds of fields; knows no limit of the daemon. Each type raises
ArgumentTypeError with a sentence.
"""

from __future__ import annotations

import argparse
from pathlib import Path

FILE_SIGN = "@"


def text(value: str) -> str:
    """What the wire can carry: an argument that is no UTF-8 holds lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("is not UTF-8") from None
    return value


def text_or_file(value: str) -> str:
    """A text, or that of the file whose name follows an @."""
    if not value.startswith(FILE_SIGN):
        return text(value)
    path = value.removeprefix(FILE_SIGN)
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise argparse.ArgumentTypeError(f"{path} is not UTF-8") from None
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(f"cannot read {path}: {cause}") from None


def uint32(value: str) -> int:
    """A whole number of 32 bits."""
    return _uint(value, 32)


def uint64(value: str) -> int:
    """A whole number of 64 bits."""
    return _uint(value, 64)


def bias(value: str) -> tuple[int, float]:
    """ID=NUMBER: a token id and what is added to its logit."""
    token_id, _, number = value.partition("=")
    try:
        return uint32(token_id), float(number)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"{value!r} is no token id, =, and number") from None


def _uint(value: str, bits: int) -> int:
    if not (value.isdecimal() and int(value) < 1 << bits):
        raise argparse.ArgumentTypeError(f"{value!r} is no whole number from 0 to 2^{bits} - 1")
    return int(value)
