"""Promises to the operator who writes --drafter."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from drafters import registry
from drafters.ngram import NgramDrafter
from drafters.registry import DrafterNotFound, known_names, load, name_of

SOURCE = """
from drafters.contract import BaseDrafter

def propose(tokens, budget):
    return [1] * budget

def short(tokens):
    return []

class Full(BaseDrafter):
    kind = "class"
    class Inner(BaseDrafter):
        kind = "inner"

instance = Full()
number = 5
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with a module, as the current directory; imports are undone after."""
    (tmp_path / "users_drafter.py").write_text(SOURCE)
    (tmp_path / "users_broken.py").write_text("raise RuntimeError('at import')")
    (tmp_path / "users_exits.py").write_text("import sys\nsys.exit(3)")
    (tmp_path / "users_needs.py").write_text("import a_module_that_is_not_there")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("users_"):
            del sys.modules[name]


def test_a_built_in_name_loads_and_each_load_is_a_new_one() -> None:
    first, second = load("ngram"), load(" ngram ")
    assert isinstance(first, NgramDrafter)
    assert first is not second


def test_built_in_names_are_known() -> None:
    assert "ngram" in known_names()


def test_a_function_of_the_current_directory_loads() -> None:
    drafter = load("users_drafter:propose")
    assert not drafter.inline


def test_a_class_an_instance_and_a_dotted_attribute_load() -> None:
    assert getattr(load("users_drafter:Full"), "kind") == "class"  # noqa: B009
    assert getattr(load("users_drafter:Full.Inner"), "kind") == "inner"  # noqa: B009
    assert load("users_drafter:instance") is sys.modules["users_drafter"].instance


def test_the_current_directory_takes_no_installed_modules_place(project: Path) -> None:
    (project / "drafters").mkdir()
    (project / "drafters" / "__init__.py").write_text("raise RuntimeError('the wrong one')")
    load("users_drafter:propose")
    assert sys.path[-1] == str(project)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("nosuch", r"no drafter has this name; known names are .*ngram.*module:object"),
        ("", "no drafter has this name"),
        (":propose", "both sides of the colon"),
        ("users_drafter:", "both sides of the colon"),
        ("users_nowhere:propose", "there is no module 'users_nowhere', neither installed nor in"),
        ("users_drafter.sub:propose", "importing 'users_drafter.sub' raised|there is no module"),
        ("users_drafter:nothing", r"\(.*users_drafter\.py\) has no 'nothing'"),
        ("users_drafter:Full.nothing", "has no 'Full.nothing'"),
        ("users_broken:propose", "importing 'users_broken' raised RuntimeError: at import"),
        ("users_exits:propose", "importing 'users_exits' raised SystemExit: 3"),
        ("users_needs:propose", "importing 'users_needs' raised ModuleNotFoundError: .*not_there"),
        ("users_drafter:short", "it takes .* called with 2 positional arguments"),
        ("users_drafter:number", "it is a int; a drafter is a function"),
    ],
)
def test_what_cannot_be_loaded_is_told_with_a_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(DrafterNotFound, match=sentence) as caught:
        load(spec)
    assert caught.value.spec == spec
    assert repr(spec) in str(caught.value)


@pytest.mark.parametrize("spec", ["ngram", " ngram", "my_module:propose"])
def test_a_drafter_is_called_what_the_operator_wrote(spec: str) -> None:
    assert name_of(spec) == spec.strip()


def test_the_built_ins_are_the_projects_entry_points() -> None:
    project_file = Path(registry.__file__).parents[1] / "pyproject.toml"
    declared = tomllib.loads(project_file.read_text())["project"]["entry-points"]
    assert declared[registry.GROUP] == registry._BUILT_IN
