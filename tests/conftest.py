"""Fixtures that every kind of test shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.model.catalog import DEFAULT_MODEL
from specd.model.pull import pull


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file, fetched into the cache on first use. For the marker `model`."""
    return pull(DEFAULT_MODEL).path
