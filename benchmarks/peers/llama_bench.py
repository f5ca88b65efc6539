"""llama.cpp's own benchmark, for figures that people know.

Knows the flags and the JSON of `llama-bench`. Its prompts want the logits of the last position
alone, so its steps are cheaper than those of a verification.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.contract import PeerFailed, finished


def prompt_speeds(
    binary: str, model: Path, threads: int, sizes: Sequence[int], repeats: int
) -> dict[str, float]:
    """Tokens per second of prompts by their size. Raises PeerAbsent, PeerFailed."""
    command = [binary, "--model", str(model), "--threads", str(threads), "--n-gen", "0"]
    command += ["--n-prompt", ",".join(map(str, sizes)), "--repetitions", str(repeats)]
    done = finished([*command, "--output", "json"])
    if done.returncode:
        raise PeerFailed(f"{binary} ended with status {done.returncode}: {done.stderr[-500:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return {str(one["n_prompt"]): one["avg_ts"] for one in found}
