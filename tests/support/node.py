"""Where Node is. Knows the extra `dev`, which brings one beside Python."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest


def node_path() -> str:
    """The path of Node; a test that needs it fails where there is none."""
    beside = Path(sys.executable).with_name("node")
    found = str(beside) if beside.exists() else shutil.which("node")
    if found is None:
        pytest.fail("there is no node: install the extra dev, which brings one")
    return found
