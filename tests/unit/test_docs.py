"""The pages in docs are true: files, symbols, reasons and settings are those of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from pydantic_core import PydanticUndefined

from specd.config import CONFIG_VARIABLE, ServeSettings
from specd.server.status import TABLE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MAX_FILES = 8
NUM_CONVENTIONS = 36


def rows(page: str) -> list[list[str]]:
    """The cells of every table row of a page, without headings and rules."""
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if not set("".join(row)) <= set("-: ")]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def symbols_of(path: Path) -> set[str]:
    """Functions and classes of a file, methods with their class."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            kinds = ast.FunctionDef | ast.AsyncFunctionDef
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, kinds)}
    return found


def test_the_life_of_a_request_names_files_and_symbols_that_exist() -> None:
    told = [row for row in rows("life-of-a-request.md") if row[0].isdecimal()]
    assert [row[0] for row in told] == [str(n + 1) for n in range(len(told))]
    for _, file, symbols, _ in told:
        (path,) = quoted(file)
        missing = set(quoted(symbols)) - symbols_of(ROOT / path)
        assert not missing, f"{path} has no {missing}"
        assert quoted(symbols)


def test_the_life_of_a_request_fits_in_eight_files() -> None:
    told = [row for row in rows("life-of-a-request.md") if row[0].isdecimal()]
    files = {name for row in told for name in quoted(row[1])}
    assert len(files) == len(told) <= MAX_FILES


def test_every_reason_is_documented_with_its_code_and_no_other() -> None:
    table = rows("errors.md")
    told = {reason: row[1] for row in table for reason in quoted(row[0]) if reason.isupper()}
    sent = {row.reason: row.code.name for row in TABLE.values()}
    assert told == sent | {"INTERNAL": "INTERNAL"}


def test_every_setting_is_documented_with_its_default_and_no_other() -> None:
    told = {row[0].strip("`"): quoted(row[1]) for row in rows("configuration.md")[1:]}
    assert list(told) == list(ServeSettings.model_fields)
    for name, field in ServeSettings.model_fields.items():
        default = field.default
        if default in (None, PydanticUndefined):
            continue
        parts = default if isinstance(default, tuple) else (default,)
        shown = [str(part).lower() if isinstance(part, bool) else str(part) for part in parts]
        assert told[name] == shown, name


def test_of_every_convention_it_is_said_how_it_is_met_and_tested_or_why_it_is_left() -> None:
    table = rows("grpc-conventions.md")[1:]
    assert [int(row[0]) for row in table] == list(range(1, NUM_CONVENTIONS + 1))
    for number, _, state, how, tests in table:
        assert state.startswith(("met", "left")), number
        assert how, number
        assert bool(quoted(tests)) is state.startswith("met"), number
        for name in quoted(tests):
            file, _, test = name.partition("::")
            folder, _, stem = file.partition("/")
            path = ROOT / "tests" / folder / f"test_{stem}.py"
            assert f"test_{test}" in symbols_of(path), f"{number}: {name}"


def test_every_variable_of_the_configuration_page_is_known() -> None:
    text = (DOCS / "configuration.md").read_text()
    names = {"SPECD_CACHE", "SPECD_ADDRESS", CONFIG_VARIABLE, "SPECD_KEY"}
    known = {f"SPECD_{name.upper()}" for name in ServeSettings.model_fields} | names
    assert set(re.findall(r"SPECD_[A-Z]+(?:_[A-Z]+)*", text)) <= known


def test_pages_point_at_files_that_exist() -> None:
    pages = [*DOCS.glob("*.md"), ROOT / "README.md"]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
