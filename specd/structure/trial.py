"""A process that compiles grammars only to see that it can: in bounded time and memory.

The library's limits do not bound every compile. A multiple of 999,983 in a JSON schema took 34 s,
a negated terminal 2 to the power of its length, and 20 MB for each second; nothing stops a thread.
Nor do they bound a mask: `((((a{50}){50}){50}){50}){50}` took 0.6 s for its first.
So a grammar that nobody has compiled yet is compiled here first, and followed for some tokens, and
this process may be killed. `judge.py` runs it as a program of its own: one JSON document a line
comes in, first the vocabulary and then grammars, and for each that is done, whatever came of it, a
line goes out with two numbers: the seconds of processor time of the compile with its first mask,
and of the slowest mask.
Invariant: it imports nothing but the library, and ends when its reader does.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from contextlib import suppress
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

# The worst texts that are worth something took 0.3 s and 50 MB.
MAX_SECONDS = 3
MAX_BYTES = 1 << 30
# Of each way that is followed: the lowest ids, the highest, and some.
_WAY_TOKENS = 8


class Vocabulary(TokenizerWrapper):
    """As many ids as the model has, and its special tokens; for text single bytes will do."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.is_tokenizer_wrapper = True
        special = {int(token): text.encode() for token, text in told["special"].items()}
        ids = range(told["size"])
        ordinary = zip((token for token in ids if token not in special), range(256), strict=False)
        texts = special | {token: bytes([value]) for token, value in ordinary}
        self.tokens = [texts.get(token, b"") for token in ids]
        self.special_token_ids = sorted(special)
        self.eos_token_id = told["ends"][0]
        self.bos_token_id = None

    def __call__(self, text: str) -> list[int]:
        return []


def main() -> None:
    """Serve until the input ends."""
    os.nice(5)
    with suppress(OSError, ValueError):  # not every system limits memory
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    told = json.loads(sys.stdin.readline())
    library = LLTokenizer(Vocabulary(told), eos_token=told["ends"])
    _answer(0.0, 0.0)
    ends = sum(1 << token for token in told["ends"])
    for line in sys.stdin:
        order = json.loads(line)
        # In seconds, and counted from the start; ends it too where nobody is left to kill it.
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + MAX_SECONDS + 2, hard))
        limits = LLParserLimits(verbose_errors=False, **order["limits"])
        begun = time.process_time()
        matcher = LLMatcher(library, order["grammar"], log_level=0, limits=limits)
        slowest, _ = _timed_mask(matcher)
        _answer(time.process_time() - begun, max(slowest, _slowest_behind(matcher, ends)))


def _timed_mask(matcher: LLMatcher) -> tuple[float, int]:
    """The seconds of processor time of a mask, and its bits."""
    begun = time.process_time()
    mask = matcher.compute_bitmask()
    return time.process_time() - begun, int.from_bytes(mask, "little")


def _slowest_behind(first: LLMatcher, ends: int) -> float:
    """The seconds of the slowest mask on a few ways into the grammar, the same at each trial."""
    slowest, choose = 0.0, random.Random(1)
    for way in ("lowest", "highest", "some"):
        matcher = first.deep_copy()
        for _ in range(_WAY_TOKENS):
            seconds, mask = _timed_mask(matcher)
            slowest = max(slowest, seconds)
            token = _choice(mask & ~ends, way, choose)
            if matcher.is_error() or token is None or not matcher.consume_token(token):
                break
    return slowest


def _choice(mask: int, way: str, choose: random.Random) -> int | None:
    """One of the ids whose bits are set, None if there is none."""
    if mask == 0:
        return None
    if way == "highest":
        return mask.bit_length() - 1
    from_here = choose.randrange(mask.bit_length()) if way == "some" else 0
    mask = mask >> from_here << from_here
    return (mask & -mask).bit_length() - 1


def _answer(compile_s: float, mask_s: float) -> None:
    sys.stdout.write(f"{compile_s} {mask_s}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
