"""The benchmarks measure what they say: known runs, peers that fail, whole small runs."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from benchmarks import race, roofline
from benchmarks.contenders import Field, contenders, reference
from benchmarks.contest import Course, Entry, compete, figures, is_unfinished
from benchmarks.peers.contract import Answer, Contender, Drafted, Peer, PeerAbsent, PeerFailed
from benchmarks.prompts import Prompts
from benchmarks.quality import Quality, windows
from benchmarks.toy_gguf import build_toy_model
from specd.cli.child import Child
from specd.cli.timing import Timing, percentile, together_tokens_per_s
from specd.errors import StartFailed

COURSE = Course(prompt_tokens=(8, 20), streams=2, new_tokens=6, rounds=3)
PROMPTS = Prompts(tuple(range(100)))


def answer(first_s: float, *later_s: float, start_s: float = 0.0, tokens: int = 1) -> Answer:
    """A stream whose every arrival brings `tokens` tokens."""
    times = (first_s, *later_s)
    return Answer(tuple(range(len(times))), Timing(start_s, tuple((at, tokens) for at in times)))


@dataclass
class Player:
    """A peer that answers a token each `pace_s`, and remembers what it was given."""

    pace_s: float
    fails_at: int = -1
    pid: int = 0
    version: str = "player 1"
    given: list[list[list[int]]] = field(default_factory=list)

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Answer]:
        if len(self.given) == self.fails_at:
            raise PeerFailed("it broke")
        self.given.append([list(ids) for ids in prompts])
        times = [self.pace_s * (place + 1) for place in range(num_tokens)]
        return [answer(*times) for _ in prompts]


def contender(name: str, peer: Peer | None) -> Contender:
    @contextmanager
    def start() -> Iterator[Peer]:
        if peer is None:
            raise PeerAbsent("it is not here")
        yield peer

    return Contender(name, "plain", start)


def by_state(entries: Sequence[Entry]) -> dict[str, str]:
    return {entry.contender.name: entry.state for entry in entries}


def test_decoding_counts_the_tokens_behind_the_first_arrival_and_their_time() -> None:
    timing = Timing(10.0, ((12.0, 2), (12.5, 1), (14.0, 4)))
    assert timing.first_token_s == 2.0
    assert timing.decode_tokens_per_s == 5 / 2.0
    assert timing.gaps_s == [0.5, 1.5]
    assert Timing(0.0, ((1.0, 3),)).decode_tokens_per_s is None


def test_streams_together_are_timed_from_the_first_call_to_the_last_token() -> None:
    streams = [Timing(1.0, ((2.0, 1), (3.0, 1))), Timing(1.5, ((4.0, 2), (5.0, 4)))]
    assert together_tokens_per_s(streams) == 8 / 4.0


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.99, 4), (0.01, 1), (0.75, 3)])
def test_a_percentile_is_one_of_the_values(share: float, value: int) -> None:
    assert percentile([4, 1, 3, 2], share) == value


def test_ratios_are_medians_of_rounds_and_never_mix_them() -> None:
    ours = Entry(contender("specd", None))
    theirs = Entry(contender("other", None))
    # Rounds that slow down for both: ratios of 2, 2 and 4, although medians would say 4.
    ours.runs[10] = [[answer(1, 2)], [answer(2, 4)], [answer(1, 2)]]
    theirs.runs[10] = [[answer(2, 4)], [answer(4, 8)], [answer(4, 8)]]
    first, second = figures([ours, theirs], reference)
    assert (first.reference_decode_ratio, first.reference_prefill_ratio) == (1.0, 1.0)
    assert (second.reference_decode_ratio, second.reference_prefill_ratio) == (2.0, 2.0)
    assert second.reference_total_ratio == 2.0
    assert second.decode_tokens_per_s == 0.25
    assert second.prefill_tokens_per_s == 2.5
    assert second.reference == "specd"


def test_a_contender_that_lacks_rounds_is_compared_with_nobody() -> None:
    ours, theirs = Entry(contender("specd", None)), Entry(contender("other", None))
    ours.runs[10] = [[answer(1, 2)]]
    theirs.runs[10] = [[answer(1, 2)], [answer(1, 2)]]
    assert figures([ours, theirs], reference)[1].reference_decode_ratio is None


def test_drafts_are_told_where_the_peer_tells_them() -> None:
    entry = Entry(contender("specd", None))
    plain = answer(1, 2)
    told = Drafted(steps=4, draft_tokens=10, accepted_draft_tokens=2, pad_positions=3)
    entry.runs[10] = [[Answer(plain.token_ids, plain.timing, told)]]
    (found,) = figures([entry], reference)
    assert (found.tokens_per_step, found.acceptance, found.pad_positions) == (1.5, 0.2, 3)
    entry.runs[10] = [[plain]]
    (found,) = figures([entry], reference)
    assert (found.tokens_per_step, found.acceptance, found.pad_positions) == (None, None, None)


def test_everybody_gets_the_same_prompts_and_nobody_gets_one_twice() -> None:
    one, other = Player(0.1), Player(0.2)
    compete([contender("specd", one), contender("other", other)], COURSE, PROMPTS, idle_s=0)
    warm_up, *measured = one.given
    assert other.given == one.given
    assert len(measured) == COURSE.rounds * len(COURSE.prompt_tokens)
    for length in COURSE.prompt_tokens:
        prompts = [ids for given in measured for ids in given if len(ids) == length]
        assert len(prompts) == COURSE.rounds * COURSE.streams
        assert len({ids[0] for ids in prompts}) == len(prompts)


def test_nobody_is_always_the_first() -> None:
    order: list[str] = []
    names = ("a", "b", "c")
    compete(
        [contender(name, Player(0.1)) for name in names],
        Course((8,), 1, 4, rounds=3),
        PROMPTS,
        order.append,
        idle_s=0,
    )
    rounds = [message for message in order if "round" in message]
    assert [message[-1] for message in rounds] == [*"abc", *"bca", *"cab"]


def test_absent_and_failed_peers_are_listed_and_the_others_run_on() -> None:
    entries = compete(
        [
            contender("specd", Player(0.1)),
            contender("absent", None),
            contender("weak", Player(0.1, fails_at=2)),
            contender("weaker", Player(0.1, fails_at=0)),
        ],
        COURSE,
        PROMPTS,
        idle_s=0,
    )
    assert by_state(entries) == {
        "specd": "ran",
        "absent": "absent",
        "weak": "failed",
        "weaker": "failed",
    }
    assert [entry.reason for entry in entries] == [
        None,
        "it is not here",
        "8 tokens: it broke",
        "it broke",
    ]
    # What broke off is not shown with fewer rounds than the others.
    assert {one.contender for one in figures(entries, reference)} == {"specd"}


class Interrupted(Player):
    """Somebody presses Ctrl-C during its third measured run."""

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Answer]:
        if len(self.given) == 3:
            raise KeyboardInterrupt
        return super().run(prompts, num_tokens)


def test_an_interrupted_course_keeps_its_whole_rounds() -> None:
    # The third round begins with "other" or "last", so that these have run more rounds.
    course = Course((8,), 1, 4, rounds=4)
    players = [("specd", Interrupted(0.1)), ("other", Player(0.1)), ("last", Player(0.1))]
    everybody = [contender(name, player) for name, player in players]
    entries = compete(everybody, course, PROMPTS, idle_s=0)
    assert is_unfinished(entries, course)
    assert [len(entry.runs[8]) for entry in entries] == [2, 2, 2]
    assert not is_unfinished(compete(everybody[1:], course, PROMPTS, idle_s=0), course)


def test_who_spins_while_idle_is_seen() -> None:
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    rest = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        entries = compete(
            [
                contender("spins", Player(0.1, pid=loop.pid)),
                contender("sleeps", Player(0.1, pid=rest.pid)),
            ],
            Course((8,), 1, 4, 1),
            PROMPTS,
            idle_s=0.3,
        )
    finally:
        for process in (loop, rest):
            process.kill()
            process.wait()
    spins, sleeps = (entry.idle_cpu_share for entry in entries)
    assert spins is not None and sleeps is not None
    assert spins > 0.1 > sleeps


def test_only_those_who_are_named_take_part_beside_specd() -> None:
    parser = race.parser_of(None, streams=1)
    flags = ["--model", "x", "--only"]
    chosen = parser.parse_args([*flags, "llama-server"])
    sizes, child = Field(Path("x"), 1, 1, 8), Child("nowhere:1", 1)
    names = [one.name for one in contenders(chosen, sizes, child)]
    assert names == ["specd", "specd, ngram", "llama-server"]
    with pytest.raises(StartFailed, match="no contender 'lama'; there are: specd; .*; vllm"):
        contenders(parser.parse_args([*flags, "lama"]), sizes, child)


@pytest.mark.parametrize("tied", [True, False])
def test_the_bound_counts_what_a_step_reads(tmp_path: Path, tied: bool) -> None:
    path = tmp_path / "toy.gguf"
    build_toy_model(path, vocab=512, layers=2, heads=4, kv_heads=2, head_dim=32, ffn=256, tied=tied)
    hidden, kv, ffn = 128, 64, 256
    layer = 2 * hidden * hidden + 2 * kv * hidden + 3 * hidden * ffn + 2 * hidden
    found = roofline.file_bytes(path)
    assert found.weight_bytes == 4 * (2 * layer + 512 * hidden + hidden)
    assert found.kv_bytes_per_position == 2 * 2 * kv * 2
    assert found.tokens_per_s(100, 1e9) == 1e9 / (found.weight_bytes + 100 * 512)


def test_quality_is_that_of_the_distributions() -> None:
    wanted = np.log(np.array([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]))
    found = np.log(np.array([[0.25, 0.7, 0.05], [0.8, 0.1, 0.1]])) + 3.0
    quality = Quality()
    quality.add(found, wanted, [0, 1])
    told = quality.document()
    first = 0.5 * math.log(0.5 / 0.25) + 0.25 * (math.log(0.25 / 0.7) + math.log(0.25 / 0.05))
    assert told["kl_divergence"] == pytest.approx(first / 2)
    assert told["same_likeliest_token"] == 0.5
    assert told["perplexity"] == pytest.approx(1 / 0.7)  # token 1 behind token 0


def test_quality_counts_the_same_whatever_the_size_of_its_blocks() -> None:
    random = np.random.default_rng(0)
    wanted, found = random.normal(size=(2, 200, 11))
    ids = [int(one) for one in random.integers(0, 11, 200)]
    quality = Quality()
    quality.add(found, wanted, ids)
    log = found - np.log(np.exp(found).sum(1, keepdims=True))
    loss = -np.mean([log[place, ids[place + 1]] for place in range(199)])
    assert quality.document()["perplexity"] == pytest.approx(math.exp(loss))


def test_windows_cover_the_text_and_leave_out_what_predicts_nothing() -> None:
    assert list(windows(range(10), 4, 9)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert list(windows(range(10), 4, 100))[-1] == [8, 9]


def test_prompts_beyond_the_context_are_refused_in_a_sentence(tmp_path: Path) -> None:
    toy = tmp_path / "toy.gguf"
    build_toy_model(toy, layers=1, context_length=256)
    parser = race.parser_of(None, streams=1)
    chosen = parser.parse_args(["--model", str(toy), "--prompts", "8", "250"])
    with pytest.raises(StartFailed, match="^prompts and answers of 378 tokens are more than the "):
        race.Race("decode", chosen)
