"""Contenders in turn, and what their runs amount to.

Knows the order of runs, medians and ratios; nothing of what a contender is. Invariant: within a
round all contenders get the same prompts, one after the other, and no contender is always the
first; a ratio compares runs of one round.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.contract import Answer, Contender, Kind, Peer, PeerAbsent, PeerFailed
from benchmarks.prompts import Prompts
from specd.cli.timing import percentile, together_tokens_per_s

Progress = Callable[[str], None]

_WARM_TOKENS = 8
IDLE_S = 1.0
_CLOCK_FIELDS = slice(11, 13)  # of /proc/PID/stat behind the name: user and system ticks
_TICKS_PER_S = 100


@dataclass(slots=True)
class Entry:
    """A contender in a contest. reason: why it did not run, or not to the end."""

    contender: Contender
    state: str = "waiting"  # then "ran", "absent" or "failed"
    reason: str | None = None
    version: str | None = None
    idle_cpu_share: float | None = None
    peer: Peer | None = None
    runs: dict[int, list[list[Answer]]] = field(default_factory=dict)  # by prompt length

    def end(self, state: str, reason: str) -> None:
        """Let it take part no longer."""
        self.state, self.reason, self.peer = state, reason, None


@dataclass(frozen=True, slots=True)
class Course:
    """What everybody runs."""

    prompt_tokens: tuple[int, ...]
    streams: int
    new_tokens: int
    rounds: int


def compete(
    contenders: Sequence[Contender],
    course: Course,
    prompts: Prompts,
    progress: Progress = lambda message: None,
    idle_s: float = IDLE_S,
) -> list[Entry]:
    """Start all contenders, run the course, stop them.

    An interrupt ends the course early, and whole rounds are kept. idle_s: for which everybody
    shall sit still.
    """
    entries = [Entry(contender) for contender in contenders]
    with ExitStack() as stack:
        for entry in entries:
            progress(f"starting {entry.contender.name}")
            _start(entry, stack, course, prompts)
        _watch_idle(entries, idle_s)
        try:
            _run_course(entries, course, prompts, progress)
        except KeyboardInterrupt:
            progress("interrupted")
            _keep_whole_rounds(entries)
    return entries


def is_unfinished(entries: Sequence[Entry], course: Course) -> bool:
    """Whether the course was interrupted."""
    live = [entry for entry in entries if entry.state == "ran"]
    counts = {len(entry.runs.get(length, ())) for entry in live for length in course.prompt_tokens}
    return bool(counts - {course.rounds})


def _run_course(entries: list[Entry], course: Course, prompts: Prompts, progress: Progress) -> None:
    for length, round_number in itertools.product(course.prompt_tokens, range(course.rounds)):
        for entry in _rotated(entries, round_number):
            if entry.peer is not None:
                place = f"{length} tokens, round {round_number + 1} of {course.rounds}"
                progress(f"{place}: {entry.contender.name}")
                _run(entry, course, prompts.of(length, course.streams, round_number), length)


def _keep_whole_rounds(entries: Sequence[Entry]) -> None:
    live = [entry for entry in entries if entry.state == "ran"]
    for length in {length for entry in live for length in entry.runs}:
        whole = min(len(entry.runs.get(length, ())) for entry in live)
        for entry in live:
            runs = entry.runs.pop(length, [])[:whole]
            if runs:
                entry.runs[length] = runs


def _start(entry: Entry, stack: ExitStack, course: Course, prompts: Prompts) -> None:
    try:
        peer = stack.enter_context(entry.contender.start())
        peer.run(prompts.of(min(course.prompt_tokens), course.streams, 0), _WARM_TOKENS)
    except PeerAbsent as error:
        entry.end("absent", str(error))
    except PeerFailed as error:
        entry.end("failed", str(error))
    else:
        entry.peer, entry.version, entry.state = peer, peer.version, "ran"


def _run(entry: Entry, course: Course, prompts: list[list[int]], length: int) -> None:
    assert entry.peer is not None
    try:
        answers = entry.peer.run(prompts, course.new_tokens)
    except PeerFailed as error:
        entry.end("failed", f"{length} tokens: {error}")
        entry.runs.pop(length, None)
    else:
        entry.runs.setdefault(length, []).append(answers)


def _rotated(entries: list[Entry], by: int) -> list[Entry]:
    by %= len(entries)
    return entries[by:] + entries[:by]


def _watch_idle(entries: Sequence[Entry], idle_s: float) -> None:
    """Whoever spins while it waits slows down the others. Some spin for a moment, so wait first."""
    live = [entry for entry in entries if entry.peer is not None]
    time.sleep(idle_s)
    before = [_cpu_s(entry.peer) for entry in live]
    time.sleep(idle_s)
    for entry, start_s in zip(live, before, strict=True):
        end_s = _cpu_s(entry.peer)
        if start_s is not None and end_s is not None:
            entry.idle_cpu_share = (end_s - start_s) / idle_s


def _cpu_s(peer: Peer | None) -> float | None:
    """Processor time of the peer's process; None where the system does not tell."""
    stat = Path(f"/proc/{peer.pid}/stat") if peer is not None else None
    if stat is None or not stat.exists():
        return None
    fields = stat.read_text().rpartition(")")[2].split()
    return sum(map(int, fields[_CLOCK_FIELDS])) / _TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over the rounds of one contender at one prompt length; ratios are by round.

    decode_tokens_per_s: of one stream. total_tokens_per_s: of all together, prompts included.
    """

    prompt_tokens: int
    contender: str
    kind: Kind
    first_token_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    total_tokens_per_s: float
    gap_p50_s: float
    gap_p99_s: float
    tokens_per_step: float | None
    acceptance: float | None
    pad_positions: int | None
    reference: str | None  # specd's contender of the same kind
    reference_prefill_ratio: float | None
    reference_decode_ratio: float | None
    reference_total_ratio: float | None
    same_tokens_as_reference: float | None  # share of streams

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def figures(entries: Sequence[Entry], reference: Callable[[Kind], str]) -> list[Figures]:
    """All that was measured. reference: the name of the contender that a kind is compared with.

    Ratios are the reference's speed over the contender's, so above 1 the reference is faster.
    """
    by_name = {entry.contender.name: entry for entry in entries}
    found = []
    for length in sorted({length for entry in entries for length in entry.runs}):
        for entry in entries:
            if rounds := entry.runs.get(length):
                other = by_name.get(reference(entry.contender.kind))
                theirs = [] if other is None else other.runs.get(length, [])
                found.append(_figures(entry.contender, length, rounds, other, theirs))
    return found


def _figures(
    contender: Contender,
    length: int,
    rounds: list[list[Answer]],
    other: Entry | None,
    theirs: list[list[Answer]],
) -> Figures:
    gaps_s = [gap for answers in rounds for one in answers for gap in one.timing.gaps_s]
    first_s = statistics.median(map(_first_s, rounds))
    steps, drafted, accepted, pads = _drafting(rounds)
    compared = theirs if len(theirs) == len(rounds) else []
    return Figures(
        prompt_tokens=length,
        contender=contender.name,
        kind=contender.kind,
        first_token_s=first_s,
        prefill_tokens_per_s=length / first_s,
        decode_tokens_per_s=statistics.median(map(_decode, rounds)),
        total_tokens_per_s=statistics.median(map(_total, rounds)),
        gap_p50_s=percentile(gaps_s, 0.5) or 0.0,
        gap_p99_s=percentile(gaps_s, 0.99) or 0.0,
        tokens_per_step=None if not steps else 1 + accepted / steps,
        acceptance=accepted / drafted if drafted else None,
        pad_positions=pads,
        reference=other.contender.name if other is not None and compared else None,
        reference_prefill_ratio=_ratio(rounds, compared, lambda answers: 1 / _first_s(answers)),
        reference_decode_ratio=_ratio(rounds, compared, _decode),
        reference_total_ratio=_ratio(rounds, compared, _total),
        same_tokens_as_reference=_agreement(rounds, compared),
    )


def _first_s(answers: Sequence[Answer]) -> float:
    return statistics.median(answer.timing.first_token_s for answer in answers)


def _decode(answers: Sequence[Answer]) -> float:
    """Of one stream; 0 where everything arrived at once."""
    return statistics.median(answer.timing.decode_tokens_per_s or 0.0 for answer in answers)


def _total(answers: Sequence[Answer]) -> float:
    return together_tokens_per_s([answer.timing for answer in answers])


def _ratio(
    ours: list[list[Answer]],
    theirs: list[list[Answer]],
    figure: Callable[[Sequence[Answer]], float],
) -> float | None:
    """Median over the rounds of their figure over ours."""
    pairs = [(figure(one), figure(other)) for one, other in zip(ours, theirs, strict=False)]
    found = [other / one for one, other in pairs if one]
    return statistics.median(found) if found else None


def _agreement(ours: list[list[Answer]], theirs: list[list[Answer]]) -> float | None:
    pairs = [
        (one.token_ids, other.token_ids)
        for our_round, their_round in zip(ours, theirs, strict=False)
        for one, other in zip(our_round, their_round, strict=True)
    ]
    return sum(one == other for one, other in pairs) / len(pairs) if pairs else None


def _drafting(rounds: list[list[Answer]]) -> tuple[int, int, int, int | None]:
    told = [one.drafted for answers in rounds for one in answers if one.drafted is not None]
    pads = [one.pad_positions for one in told if one.pad_positions is not None]
    return (
        sum(one.steps for one in told),
        sum(one.draft_tokens for one in told),
        sum(one.accepted_draft_tokens for one in told),
        sum(pads) if pads else None,
    )
