"""A process that compiles grammars only to see that it can: in bounded time and memory.

The library's limits do not bound every compile. A multiple of 999,983 in a JSON schema took 34 s,
a negated terminal 2 to the power of its length, and 20 MB for each second; nothing stops a thread.
So a grammar that nobody has compiled yet is compiled here first, up to its first mask, and this
process may be killed. `judge.py` runs it as a program of its own: one JSON document a line comes
in, first the vocabulary and then grammars, and for each that is done, whatever came of it, a line
goes out with the seconds of processor time that it took.
Invariant: it imports nothing but the library, and ends when its reader does.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from contextlib import suppress
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

# The worst texts that are worth something took 0.3 s and 50 MB.
MAX_SECONDS = 3
MAX_BYTES = 1 << 30


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
    _answer(time.process_time())
    for line in sys.stdin:
        order = json.loads(line)
        # In seconds, and counted from the start; ends it too where nobody is left to kill it.
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + MAX_SECONDS + 2, hard))
        limits = LLParserLimits(verbose_errors=False, **order["limits"])
        begun = time.process_time()
        LLMatcher(library, order["grammar"], log_level=0, limits=limits).compute_bitmask()
        _answer(time.process_time() - begun)


def _answer(seconds: float) -> None:
    sys.stdout.write(f"{seconds}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
