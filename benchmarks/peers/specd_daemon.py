"""specd itself, as its users meet it: a daemon of its own, called with the Python client.

Invariant: one daemon serves all of specd's contenders; the one that has no turn sends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from specd_client import Client, SpecdClientError

from benchmarks.peers.contract import Answer, Drafted, PeerFailed, checked
from specd import __version__
from specd.cli.child import Child
from specd.cli.timing import Run, measure


@dataclass(frozen=True, slots=True)
class SpecdPeer:
    """A `Peer`. drafter: None is plain decoding."""

    pid: int
    version: str
    address: str
    drafter: str | None

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Answer]:
        """As `Peer` says."""
        return checked(asyncio.run(self._run(prompts, num_tokens)), num_tokens)

    async def _run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Answer]:
        options: dict[str, Any] = {
            "temperature": 0.0,
            "max_new_tokens": num_tokens,
            "ignore_eos": True,
            "speculation": self.drafter is not None,
            "drafters": None if self.drafter is None else [self.drafter],
        }
        try:
            async with Client(self.address, retries=False) as client:
                await client.server_info()  # the connection is there before the clock starts
                runs = await asyncio.gather(
                    *(measure(client, {"token_ids": ids}, **options) for ids in prompts)
                )
        except SpecdClientError as error:
            raise PeerFailed(str(error)) from error
        return [_answer(run) for run in runs]


def _answer(run: Run) -> Answer:
    tally = run.tally
    counts = (tally.verify_steps, tally.draft_tokens, tally.accepted_draft_tokens)
    return Answer(run.token_ids, run.timing, Drafted(*counts, tally.pad_positions))


@contextmanager
def specd_peer(child: Child, drafter: str | None) -> Iterator[SpecdPeer]:
    """A contender on a daemon that is up."""
    yield SpecdPeer(child.pid, f"specd {__version__}", child.address, drafter)
