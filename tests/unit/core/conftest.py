"""What the core's tests run under: one torch thread, and the library that was built or is named.

`--core-library PATH` loads another build of the core, as `scripts/sanitize_core` does; pytest knows
it where this folder is named on its command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.core import library


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core-library", type=Path, help="a build of the core to test")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported: they ask for the instruction sets of the library."""
    chosen = config.getoption("core_library", None)
    if chosen is not None:
        assert not library.load.cache_info().currsize, "something loaded the core before"
        library._PATH = chosen.resolve(strict=True)
        if library.load() is None:
            raise pytest.UsageError(f"{chosen} is no library of the core")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    from tests.unit.device.texts import torch_threads  # which loads the library

    with torch_threads(1):
        yield


@pytest.fixture(scope="session")
def needs_core() -> None:
    if library.load() is None:
        pytest.skip("the core was not built here, for instance because there is no compiler")
