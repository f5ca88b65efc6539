"""Partial files: what survives, and what is trusted of it."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from specd.model.partial import Expected, Partial, WrongContent, record_path

CONTENT = random.Random(3).randbytes(5000)
EXPECTED = Expected("toy", len(CONTENT), "one", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A partial file with parts a and b, a mark behind them, and bytes behind that."""
    made = tmp_path / "toy.gguf.part"
    with Partial(made, EXPECTED) as partial:
        partial.write(CONTENT[:1000])
        partial.mark("a")
        partial.write(CONTENT[1000:3000])
        partial.mark("b")
        partial.write(CONTENT[3000:4000])
        partial.mark()
        partial.write(CONTENT[4000:4500])
    return made


def recovered(path: Path, expected: Expected = EXPECTED) -> tuple[int, tuple[str, ...]]:
    with Partial(path, expected) as partial:
        return partial.num_bytes, partial.parts


def damage(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_what_was_marked_is_there_again(path: Path) -> None:
    assert path.read_bytes() == CONTENT[:4000]
    assert recovered(path) == (4000, ("a", "b"))


def test_a_recovered_file_is_finished_with_the_same_checksum(path: Path) -> None:
    with Partial(path, EXPECTED) as partial:
        partial.write(CONTENT[4000:])
        partial.verify()
        partial.finish(path.with_name("toy.gguf"))
    assert path.with_name("toy.gguf").read_bytes() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["toy.gguf"]


@pytest.mark.parametrize(
    ("place", "kept"), [(3999, (3000, ("a", "b"))), (1000, (1000, ("a",))), (0, (0, ()))]
)
def test_a_damaged_byte_costs_what_comes_after_the_mark_before_it(
    path: Path, place: int, kept: tuple[int, tuple[str, ...]]
) -> None:
    damage(path, place)
    assert recovered(path) == kept


def test_bytes_that_nobody_marked_are_cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"written before a kill")
    assert recovered(path) == (4000, ("a", "b"))
    assert path.stat().st_size == 4000


def test_a_file_that_lost_its_end_goes_on_from_the_mark_before(path: Path) -> None:
    path.write_bytes(CONTENT[:2999])
    assert recovered(path) == (1000, ("a",))


def test_bytes_of_another_file_are_not_gone_on_with(path: Path) -> None:
    other = Expected("toy", len(CONTENT), "two", None)
    assert recovered(path, other) == (0, ())
    assert not path.exists()


@pytest.mark.parametrize(
    "record",
    ["", "[]", "{}", "\xff", '{"identity": "one", "marks": [{"num_bytes": -1}]}']
    + ['{"identity": "one", "marks": 7}'],
)
def test_a_record_that_is_none_is_as_good_as_none(path: Path, record: str) -> None:
    record_path(path).write_text(record, encoding="latin-1")
    assert recovered(path) == (0, ())


def test_marks_that_go_backwards_are_not_believed(path: Path) -> None:
    document = json.loads(record_path(path).read_text())
    document["marks"].reverse()
    record_path(path).write_text(json.dumps(document))
    assert recovered(path) == (4000, ())


def test_going_back_to_a_part_goes_on_with_the_right_checksum(path: Path) -> None:
    with Partial(path, EXPECTED) as partial:
        partial.rewind(1)
        assert (partial.num_bytes, partial.parts) == (1000, ("a",))
        partial.write(CONTENT[1000:])
        partial.verify()


def test_a_file_with_nothing_worth_keeping_is_removed(tmp_path: Path) -> None:
    with Partial(tmp_path / "toy.gguf.part", EXPECTED) as partial:
        partial.write(CONTENT[:10])
    assert list(tmp_path.iterdir()) == []


def test_more_bytes_than_expected_are_not_written(path: Path) -> None:
    with (
        Partial(path, EXPECTED) as partial,
        pytest.raises(WrongContent, match="more than the 5000"),
    ):
        partial.write(bytes(1001))
    assert path.stat().st_size == 4000


@pytest.mark.parametrize(
    ("rest", "problem"), [(CONTENT[4000:-1], "4999 bytes, not 5000"), (bytes(1000), "sha256")]
)
def test_what_is_not_the_file_is_not_verified(path: Path, rest: bytes, problem: str) -> None:
    with Partial(path, EXPECTED) as partial, pytest.raises(WrongContent, match=problem):
        partial.write(rest)
        partial.verify()


@pytest.mark.parametrize(
    ("owner", "name", "is_done"),
    [(os, "write", True), (Path, "replace", False), (Path, "replace", True)],
)
def test_a_control_c_anywhere_costs_what_was_just_written_at_most(
    path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_done: bool
) -> None:
    """It comes in the call of the system that `name` is: before or after what that does."""
    real = getattr(owner, name)

    def interrupted(*arguments: Any) -> Any:
        if is_done:
            real(*arguments)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Partial(path, EXPECTED) as partial:
        monkeypatch.setattr(owner, name, interrupted)
        try:
            partial.write(CONTENT[4000:4300])
            partial.mark()
        finally:
            monkeypatch.undo()
            partial.mark()
    num_bytes, parts = recovered(path)
    assert (num_bytes in {4000, 4300}, parts) == (True, ("a", "b"))
    assert path.read_bytes() == CONTENT[:num_bytes]
