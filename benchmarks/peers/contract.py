"""What a benchmark knows of a contender: prompts in, tokens with their times out.

Knows the values that pass between the contest and those who take part; nothing of either.

Invariant: an answer has exactly the tokens that were asked for, or the peer has failed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from specd.cli.timing import Timing

Kind = Literal["plain", "lookup", "draft"]  # decoding: without drafts, from the text, from a model


class PeerAbsent(Exception):
    """This peer cannot take part here; the message says why."""


class PeerFailed(Exception):
    """This peer took part, and broke off or answered something else."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """What drafting brought to one answer. pad_positions: None where the peer does not tell."""

    steps: int
    draft_tokens: int
    accepted_draft_tokens: int
    pad_positions: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """One stream. drafted: None where the peer does not tell."""

    token_ids: tuple[int, ...]
    timing: Timing
    drafted: Drafted | None = None


class Peer(Protocol):
    """A contender that is up and has its model in memory."""

    @property
    def pid(self) -> int:
        """Of its process."""

    @property
    def version(self) -> str:
        """Its name with its version."""

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Answer]:
        """Answer all prompts at once, greedy, past the end token. Raises PeerFailed."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Somebody who may take part. start: raises PeerAbsent where it cannot."""

    name: str
    kind: Kind
    start: Callable[[], AbstractContextManager[Peer]]


def checked(answers: list[Answer], num_tokens: int) -> list[Answer]:
    """The answers, if all are complete. Raises PeerFailed."""
    for answer in answers:
        if answer.timing.num_tokens != num_tokens:
            raise PeerFailed(f"{answer.timing.num_tokens} tokens came instead of {num_tokens}")
    return answers


def finished(
    command: Sequence[str], limit_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and keep what it says. Raises PeerAbsent where there is none."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except OSError as error:
        raise PeerAbsent(f"{command[0]}: {error.strerror}") from None
