"""Endless words of the keyed noise on stdout, for batteries that read a stream, like dieharder.

`python -m tests.support.noise_stream ORDER`, with the order `ids` (all ids of a vocabulary, then
those of the next position) or `positions` (one id at 4,096 positions, then the next id). It ends
when its reader does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count

from torch import Tensor

from specd.device.noise import hash_words, key_tensor
from specd.engine.seeds import key_words

SEED, VOCAB, BLOCK = 20260101, 151_936, 4096


def blocks(order: str) -> Iterator[Tensor]:
    """int32 bits of the words, a block at a time."""
    for start in count(1, BLOCK if order == "positions" else 1):
        if order == "positions":
            keys = key_tensor([key_words(SEED, start + t) for t in range(BLOCK)])
            yield hash_words(keys, BLOCK).T.contiguous()
        else:
            yield hash_words(key_tensor([key_words(SEED, start)]), VOCAB)


def main() -> None:
    try:
        for block in blocks(sys.argv[1]):
            sys.stdout.buffer.write(block.numpy().tobytes())
    except BrokenPipeError:
        sys.stderr.close()  # else Python tells of the pipe once more at its end


if __name__ == "__main__":
    main()
