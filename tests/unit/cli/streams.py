"""Streams as the daemon makes them, from tokens and steps, and what belongs to which token.

The text comes from the daemon's own `Output`; the truth about origins from the bytes of the
vocabulary, which a client never sees.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specd_client import Delta, SpeculationStep

from specd.engine.output import Output
from specd.engine.params import OutputParams, StopParams
from tests.unit.text.support import toy_tokenizer

Characters = list[tuple[str, bool]]


@dataclass
class Daemon:
    """Its Detokenize, and what it was asked."""

    asked: list[int] = field(default_factory=list)  # ids per call

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        self.asked.append(len(token_ids))
        return toy_tokenizer().decode(token_ids, skip_special=True)


def runs_of(tokens: Sequence[int], shuffle: random.Random) -> list[tuple[int, list[int]]]:
    """The tokens as steps: how many draft tokens each accepted, and its whole run."""
    runs, place = [], 0
    while place < len(tokens):
        accepted = shuffle.choice((0, 0, 1, 2, 3, 7))
        run = list(tokens[place : place + accepted + 1])
        runs.append((min(accepted, len(run)), run))
        place += len(run)
    return runs


def deltas_of(
    runs: Sequence[tuple[int, list[int]]], stops: Sequence[str] = (), num_tokens: int | None = None
) -> Iterator[Delta]:
    """One delta per step, as the loop and its mailbox make them."""
    limit = sum(len(run) for _, run in runs) if num_tokens is None else num_tokens
    stop = StopParams(max_new_tokens=limit, stop_strings=tuple(stops), ignore_eos=True)
    output = Output(toy_tokenizer(), stop, OutputParams(), context_left=limit)
    for accepted, run in runs:
        committed, ending = [], None
        for token in run:
            committed.append(token)
            ending = output.push(token)
            if ending is not None:
                break
        step = SpeculationStep("ngram" if accepted else None, 7, min(accepted, len(committed)))
        text = output.take_text()
        yield Delta(0, text, tuple(committed), (), output.num_tokens, (step,))
        if ending is not None:
            return


def merged(deltas: Sequence[Delta], shuffle: random.Random) -> Iterator[Delta]:
    """The same stream for a reader that is behind now and then."""
    place = 0
    while place < len(deltas):
        some = deltas[place : place + shuffle.choice((1, 1, 2, 5))]
        yield Delta(
            sequence_index=0,
            text="".join(delta.text for delta in some),
            token_ids=tuple(token for delta in some for token in delta.token_ids),
            logprobs=(),
            completion_tokens=some[-1].completion_tokens,
            steps=tuple(step for delta in some for step in delta.steps),
        )
        place += len(some)


def truth(deltas: Sequence[Delta]) -> Characters:
    """Each character of the text with whether an accepted draft token completed it.

    A U+FFFD belongs to the first token of the bytes that it stands for.
    """
    origins: list[bool] = []  # per byte
    data = b""
    for delta in deltas:
        (step,) = delta.steps
        for place, token in enumerate(delta.token_ids):
            if not toy_tokenizer().is_special(token):
                found = toy_tokenizer().token_bytes(token)
                data += found
                origins += [place < step.accepted_draft_tokens] * len(found)
    characters: Characters = []
    for start, end, character in _spans(data):
        characters.append((character, origins[start if character == "\ufffd" else end - 1]))
    return characters[: sum(len(delta.text) for delta in deltas)]


def _spans(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Each character of a text with its first byte and the one behind its last."""
    place = 0
    while place < len(data):
        try:
            good, error = data[place:].decode(), None
        except UnicodeDecodeError as found:
            good, error = data[place : place + found.start].decode(), found
        for character in good:
            end = place + len(character.encode())
            yield place, end, character
            place = end
        if error is not None:
            yield place, place + error.end - error.start, "\ufffd"
            place += error.end - error.start
