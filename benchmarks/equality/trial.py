"""One model in one arithmetic: a daemon with every drafter, plain answers, then groups.

Knows how a cell becomes a request, and compares what comes back. Groups whose company wants a tight
pool run in a second daemon with the same arithmetic, against the same plain answers.

Invariant: every stream that ends is compared, whoever's it is; a stream that fails is a difference.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specd_client import CallFailed, Client
from specd_client.v1 import model_pb2

from benchmarks.equality.answers import Answer, Heard, broken_sums, listen
from benchmarks.equality.axes import (
    ARITHMETICS,
    COMPANIES,
    DRAFTERS,
    PROMPTS,
    SAMPLINGS,
    TOP_LOGPROBS,
    Cut,
)
from benchmarks.equality.company import Leave
from benchmarks.equality.drafters import RECORDING
from benchmarks.equality.plan import Cell, Group, Plan
from benchmarks.equality.state import Difference, Result, State, Tally
from specd.cli.bench_runs import text
from specd.cli.child import running_daemon
from specd.engine.seeds import sequence_seed
from specd.kv.pages import PAGE_SIZE, RESERVED_PAGES, pages_for

# A prompt of 127 tokens or more is computed in parts, and in other parts beside others.
_DAEMON = ("--max-rows", "32", "--max-step-tokens", "96", "--max-draft-tokens", "9")
_MAX_DIFFERENCES = 20  # kept of one group

IsOver = Callable[[], bool]


class DaemonGone(Exception):
    """The daemon answers no more; groups that were to come did not run."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model: what the daemon is given, and what it is called here. threads: 0 is all cores."""

    name: str
    model: str
    threads: int = 0


class Trial:
    """The groups of one arithmetic that `state` does not have yet.

    problem: what is wrong with the daemon though it runs.
    """

    def __init__(
        self, subject: Subject, arithmetic: str, plan: Plan, groups: Sequence[Group], state: State
    ) -> None:
        self._subject = subject
        self._arithmetic = arithmetic
        self._plan = plan
        self._groups = [group for group in groups if not COMPANIES[group.company].is_tight]
        self._tight = [group for group in groups if COMPANIES[group.company].is_tight]
        self._state = state
        self._prompts: dict[str, dict[str, Any]] = {}
        self._fingerprint = ""
        self.problem: str | None = None
        self._tight_memory = 0

    def run(self, folder: Path, is_over: IsOver, told: Callable[[Result], None]) -> None:
        """Run until all is done or the time is over; `told` gets each group's result.

        folder: for the recording.

        Raises:
            DaemonFailed: a daemon did not start, or ended badly.
            DaemonGone: one broke down in the middle.
        """
        recording = folder / "recording.json"
        env = {**os.environ, RECORDING: str(recording)}
        with running_daemon(*self._flags(), env=env) as child:
            asyncio.run(self._run(child.address, self._groups, recording, is_over, told))
        if self._tight and not is_over():
            flags = (*self._flags(), "--kv-memory", str(self._tight_memory))
            with running_daemon(*flags, env=env) as child:
                asyncio.run(self._run(child.address, self._tight, None, is_over, told))

    def _flags(self) -> list[str]:
        subject = self._subject
        loaded = {kind.load: None for kind in DRAFTERS.values() if kind.load}
        flags = ["--model", subject.model, "--threads", str(subject.threads), *_DAEMON]
        flags += ["--log-level", "ERROR", *ARITHMETICS[self._arithmetic]]
        return [*flags, *(part for name in loaded for part in ("--drafter", name))]

    async def _run(
        self,
        address: str,
        groups: Sequence[Group],
        recording: Path | None,
        is_over: IsOver,
        told: Callable[[Result], None],
    ) -> None:
        async with Client(address, retries=False) as client:
            info = await client.server_info()
            if info.invariance != model_pb2.INVARIANCE_MODE_STRICT:
                self.problem = "the daemon promises nothing: its invariance is relaxed"
            if recording:
                await self._make_plain(client, info, recording, is_over)
            elif info.arithmetic_fingerprint != self._fingerprint:
                raise DaemonGone("the daemon with few pages has another arithmetic fingerprint")
            for group in groups:
                if is_over():
                    return
                result = await self._play(client, group)
                self._state.add_result(result)
                told(result)

    async def _make_plain(
        self, client: Client, info: model_pb2.ServerInfo, recording: Path, is_over: IsOver
    ) -> None:
        """The plain answers that all groups need, alone and one at a time; then the recording."""
        self._fingerprint = info.arithmetic_fingerprint
        members = [member for group in self._groups + self._tight for member in group.members]
        for name in dict.fromkeys(member.prompt for member in members):
            self._prompts[name] = await _prompt(client, name)
        lengths = [len(prompt["ids"]) for prompt in self._prompts.values()]
        # The longest request fits, alone; so nothing fails, and hardly two fit together.
        pages = pages_for(max(lengths) + self._plan.num_tokens) + RESERVED_PAGES
        self._tight_memory = pages * PAGE_SIZE * info.kv_bytes_per_position
        for prompt, sampling in dict.fromkeys((one.prompt, one.sampling) for one in members):
            if self._plain(prompt, sampling) is None and not is_over():
                answers = await self._ask_plainly(client, prompt, sampling)
                self._state.add_plain(self._place(prompt, sampling), self._fingerprint, answers)
        self._record(recording)

    async def _ask_plainly(self, client: Client, prompt: str, sampling: str) -> list[Answer]:
        """One answer per sequence, each a request of its own."""
        request = self._request(prompt, sampling, {"speculation": False})
        answers = []
        for index in range(request.pop("num_sequences", 1)):
            seed = sequence_seed(self._plan.seed(prompt, sampling), index)
            heard = await listen(client, request | {"seed": seed})
            if heard.error:
                raise DaemonGone(f"a plain request ({prompt}, {sampling}) failed: {heard.error}")
            answers.append(heard.answers[0])
        return answers

    def _plain(self, prompt: str, sampling: str) -> list[Answer] | None:
        found = self._state.plain.get(self._place(prompt, sampling))
        return found[1] if found and found[0] == self._fingerprint else None

    def _place(self, prompt: str, sampling: str) -> tuple[str, ...]:
        return (self._subject.name, self._arithmetic, prompt, sampling)

    def _record(self, recording: Path) -> None:
        texts = [
            [*prompt["ids"], *answer.token_ids]
            for name, prompt in self._prompts.items()
            for sampling in SAMPLINGS
            for answer in self._plain(name, sampling) or ()
        ]
        recording.write_text(json.dumps(texts))

    def _request(self, prompt: str, sampling: str, drafting: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **self._prompts[prompt]["form"],
            **{"max_new_tokens": self._plan.num_tokens, "seed": self._plan.seed(prompt, sampling)},
            **{"return_token_ids": True, "top_logprobs": TOP_LOGPROBS},
            **SAMPLINGS[sampling],
            **drafting,
        }

    async def _play(self, client: Client, group: Group) -> Result:
        """Run a group and compare all its streams. Raises DaemonGone."""
        cells = [str(cell) for cell in group.cells]
        result = Result(str(group), group.model, group.company, cells)
        began_s, computed = time.monotonic(), 0

        async def play(
            member: Cell, *, speaks: asyncio.Event | None = None, leave: Leave | None = None
        ) -> None:
            nonlocal computed
            request = self._request(
                member.prompt, member.sampling, DRAFTERS[member.drafter].request()
            )
            heard = await listen(client, request, speaks=speaks, leave=leave)
            self._compare(member, heard, result)
            computed += _num_computed(heard)

        try:
            before = (await client.server_info()).counters.real_positions
            await COMPANIES[group.company].run(play, group.members)
            after = (await client.server_info()).counters.real_positions
        except CallFailed as error:
            raise DaemonGone(f"in group {group}: {error}") from error
        if COMPANIES[group.company].is_tight:
            result.recomputed = after - before - computed
        result.seconds = round(time.monotonic() - began_s, 3)
        return result

    def _compare(self, member: Cell, heard: Heard, result: Result) -> None:
        """Add one call to the result of its group."""
        plain = self._plain(member.prompt, member.sampling) or []
        tally = result.drafters.setdefault(member.drafter, Tally())
        tally.streams += len(heard.answers)
        result.streams += len(heard.answers)
        result.left += heard.has_left
        result.tokens += heard.num_tokens
        result.scores += heard.num_scores
        if heard.started:
            result.cached += heard.started.cached_prompt_tokens
        if heard.finished:
            total = heard.finished.speculation.total
            tally.drafted += total.draft_tokens
            tally.accepted += total.accepted_draft_tokens
            tally.late += total.late
            tally.faults += total.faults
        found = [what for what in _differences(heard, plain, self._fingerprint) if what]
        room = _MAX_DIFFERENCES - len(result.differences)
        result.differences += [Difference(str(member), what) for what in found[:room]]


def _differences(heard: Heard, plain: Sequence[Answer], fingerprint: str) -> list[str | None]:
    found = [heard.error, broken_sums(heard)]
    if heard.started and heard.started.arithmetic_fingerprint != fingerprint:
        found.append("another arithmetic fingerprint")
    if not heard.has_left and not heard.error and len(heard.answers) != len(plain):
        found.append(f"{len(heard.answers)} sequences, not {len(plain)}")
    for index, answer in heard.answers.items():
        if index < len(plain):
            found.append(answer.difference(plain[index]))
        if not heard.has_left and not heard.error and not answer.is_whole:
            found.append(f"sequence {index} ended by {answer.finish or 'nothing'}")
    return found


def _num_computed(heard: Heard) -> int:
    """Positions that a call needs: its prompts, and each later step's token and drafts."""
    if heard.started is None or heard.finished is None:
        return 0
    total, count = heard.finished.speculation.total, len(heard.answers)
    return count * (heard.started.prompt_tokens - 1) + total.verify_steps + total.draft_tokens


async def _prompt(client: Client, name: str) -> dict[str, Any]:
    """How a client gives a prompt, and its tokens."""
    prompt = PROMPTS[name]
    if isinstance(prompt, Cut):
        ids = (await client.tokenize(text()[: 6 * prompt.length + 16]))[: prompt.length]
        return {"form": {"token_ids": list(ids)}, "ids": ids}
    return {"form": dict(prompt), "ids": await client.tokenize(**prompt)}
