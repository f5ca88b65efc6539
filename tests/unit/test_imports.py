"""The rules of DESIGN.md section 2 on who may import what, read from the source of every file."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIRE = ("grpc", "grpc_health", "grpc_reflection", "google", "specd_client")
TORCH = ("torch",)
# Entry points: they join the rooms, so they may import all of them.
ENTRIES = ("specd/app.py", "specd/cli/")
PACKAGES = ("specd", "drafters")


def source_files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imports_of(path: Path) -> Iterator[str]:
    """Names of all modules that a file imports anywhere, by statement or by text."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
                module = ".".join(filter(None, (base, node.module)))
                # `from specd import device` names a module, too.
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="__import__")):
                if node.args and isinstance(node.args[0], ast.Constant):
                    yield str(node.args[0].value)


def importers_of(*modules: str) -> set[str]:
    """Files that import one of the modules or anything in it, as paths from the root."""
    prefixes = tuple(f"{module}." for module in modules)
    return {
        path.relative_to(ROOT).as_posix()
        for path in source_files()
        if any(name in modules or name.startswith(prefixes) for name in imports_of(path))
    }


def outside(files: set[str], *places: str) -> list[str]:
    """The files that lie in none of the places (folders end with a slash)."""
    return sorted(file for file in files if not file.startswith(places))


def test_grpc_and_protobuf_are_known_to_the_server_and_to_remote_drafters_only() -> None:
    assert outside(importers_of(*WIRE), "specd/server/", "drafters/remote.py", *ENTRIES) == []
    assert importers_of("grpc"), "the rule looks at nothing"


def test_torch_is_known_to_the_device_the_model_and_the_core_only() -> None:
    places = ("specd/device/", "specd/model/", "specd/core/")
    assert outside(importers_of(*TORCH), *places, *ENTRIES) == []
    assert importers_of("torch"), "the rule looks at nothing"


def test_the_engine_knows_neither_the_device_nor_the_server() -> None:
    files = importers_of("specd.device", "specd.server", "specd.model", "specd.app", "specd.cli")
    assert [file for file in files if file.startswith(("specd/engine/", "specd/kv/"))] == []


def test_drafters_import_nothing_of_specd() -> None:
    assert [file for file in importers_of("specd") if file.startswith("drafters/")] == []


def test_the_drafter_contract_imports_the_standard_library_only() -> None:
    roots = {name.partition(".")[0] for name in imports_of(ROOT / "drafters/contract.py")}
    assert roots <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import torch.nn as nn", ["torch.nn"]),
        ("def f():\n    from specd.device import thread", ["specd.device.thread"]),
        ("from ..device import thread", ["specd.device.thread"]),
        ("from . import loop", ["specd.engine.loop"]),
        ("import importlib\nimportlib.import_module('grpc')", ["importlib", "grpc"]),
    ],
)
def test_every_form_of_import_is_seen(
    text: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "specd" / "engine" / "new.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert list(imports_of(path)) == names


def loaded_by(code: str, *modules: str) -> list[str]:
    """Which of the modules a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys\nprint(*(m for m in {modules!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout.splitlines()[-1].split()


def test_the_engine_runs_without_torch_and_grpc() -> None:
    assert loaded_by("import specd.engine.loop", "torch", "grpc", "google.protobuf") == []


def test_a_drafter_author_loads_neither_torch_nor_specd() -> None:
    assert loaded_by("import drafters.ngram, drafters.user", "torch", "specd", "grpc") == []


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_client_command_and_its_help_leave_torch_unloaded(command: str) -> None:
    code = (
        f"from specd.cli import {command}, main\n"
        f"try:\n    main.main(['{command}', '--help'])\n"
        "except SystemExit as done:\n    assert not done.code"
    )
    assert loaded_by(code, "torch", f"specd.cli.{command}") == [f"specd.cli.{command}"]


@pytest.mark.parametrize("flags", [["--help"], ["doctor", "--help"], ["doctor", "--model", "x"]])
def test_help_and_wrong_usage_leave_torch_unloaded(flags: list[str]) -> None:
    code = f"from specd.cli import main\ntry:\n    main.main({flags})\nexcept SystemExit:\n    pass"
    assert loaded_by(f"{code}\nprint()", "torch", "specd.cli.main") == ["specd.cli.main"]
