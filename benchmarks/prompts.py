"""Prompts of given lengths, as token ids that every contender gets alike.

Knows the tokenizer of the model file and one text. Invariant: two rounds, or two streams of one
round, never begin with the same tokens, so that no prompt cache can help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specd.cli.bench_runs import text, window
from specd.model.opening import open_model
from specd.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompts:
    """Cut from `ids`, the tokens of the text, over and over."""

    ids: tuple[int, ...]

    def of(self, length: int, streams: int, round_number: int) -> list[list[int]]:
        """One prompt of `length` tokens for each stream."""
        return [
            window(self.ids, length, round_number=round_number, stream=stream)
            for stream in range(streams)
        ]


def text_ids(model: Path) -> tuple[int, ...]:
    """The text in the model's tokens, without special ones. Raises ModelFileError."""
    tokenizer = Tokenizer.from_gguf(open_model(model).metadata)
    ids: Sequence[int] = tokenizer.encode(text(), parse_special=False, add_special=False)
    return tuple(ids)
