"""The README is true: every file has its line, every line its file, and the drafter drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

from drafters import registry
from drafters.contract import SamplingHint
from specd.engine.drafting import DraftAsk, Drafting

ROOT = Path(__file__).parents[2]
# Generated code and test files are described by their folder.
_BY_FOLDER = ("clients/python/specd_client/v1/", "clients/node/test/", "tests/")
_DOCUMENTED = ("proto/", "specd/", "drafters/", "clients/", "benchmarks/", "scripts/", "tests/")
_UNTOLD = ("__init__.py", "py.typed", "LICENSE")
_LEFT_BEHIND = (
    *("__pycache__", ".egg-info", ".mypy_cache", ".ruff_cache", ".part"),
    *("node_modules", "dist", "generated", ".so"),
)


def _tree() -> dict[str, str]:
    text = (ROOT / "README.md").read_text()
    block = text.split("## The files")[1].split("```")[1]
    pairs = (line.split(maxsplit=1) for line in block.strip().splitlines())
    return {path: description for path, description in pairs if description}


def _files() -> list[str]:
    """Every file of the documented folders but what tools leave behind."""
    found = [path for folder in _DOCUMENTED for path in (ROOT / folder).rglob("*")]
    return [
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.is_file() and not any(part.endswith(_LEFT_BEHIND) for part in path.parts)
    ]


def test_every_source_file_has_a_line_in_the_readme() -> None:
    tree = _tree()
    telling = [path for path in _files() if not path.endswith(_UNTOLD)]
    untold = [
        path
        for path in telling
        if path not in tree and not any(path.startswith(folder) for folder in _BY_FOLDER)
    ]
    assert untold == []


def test_every_line_of_the_readme_has_its_file() -> None:
    assert [path for path in _tree() if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("folder", ["tests/unit/", "tests/e2e/", "tests/model/", "tests/support/"])
def test_every_test_folder_has_a_line(folder: str) -> None:
    assert folder in _tree()


@pytest.mark.asyncio
async def test_the_drafter_of_the_readme_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (ROOT / "README.md").read_text().split("```python")[1].split("```")[0]
    (tmp_path / "readme_drafter.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    drafting = Drafting({"mine": registry.load("readme_drafter:propose")})
    drafting.begin("r", (7, 8, 9, 1), SamplingHint(temperature=0, seed=0), ("mine",))
    ask = DraftAsk("r", [7, 8, 9, 1, 7], budget=2, drafters=("mine",), grant_s=1.0)
    (draft,) = await drafting.collect([ask], step_time_s=1.0)
    await drafting.aclose()
    assert draft.token_ids == [8, 9]
