"""specd's runner without daemon, loop and gRPC: a worker, for the time of a step itself.

    PYTHON -m benchmarks.peers.specd_runner --model FILE --weights W --kernels K --threads N

Knows the boot and the padding stage. Steps run as in the daemon: one row, padded to its bucket,
its draft verified.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.peers.talk import Operation, repeated_s, serve
from specd import __version__
from specd.device.assembly import DeviceSettings
from specd.device.bandwidth import read_bandwidth
from specd.device.boot import boot
from specd.engine.padding import pad
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, CleanDraft, PaddedBatch, PlannedRow
from specd.kv.pages import RESERVED_PAGES, pages_for
from specd.model.formats import Kernels, WeightFormat

CHUNK = 256  # positions of a prompt in a step, as `--max-step-tokens`
_GREEDY = SamplingParams(temperature=0)
_KV_MEMORY = 1 << 31
_FP32_BYTES, _HALF_BYTES = 4, 2


class _Runner:
    """A booted model and the pages of the one text that it runs."""

    def __init__(self, model: Path, weights: WeightFormat, kernels: Kernels, threads: int) -> None:
        booted = boot(
            DeviceSettings(
                model_path=model,
                weights=weights,
                invariance="strict",
                kernels=kernels,
                kv_memory=_KV_MEMORY,
                max_rows=1,
                max_positions=CHUNK,
                num_threads=threads,
            )
        )
        self.runner = booted.runner
        self._kv_item_bytes = _FP32_BYTES if weights == "fp32" else _HALF_BYTES
        self.version = f"specd {__version__}, weights {weights}, kernels {self.runner.kernels}"

    def operations(self) -> dict[str, Operation]:
        return {
            "steps": self.steps,
            "prefill": self.prefill,
            "chain": self.chain,
            "logits": self.logits,
            "roofline": self.roofline,
        }

    def steps(self, ids: list[int], widths: list[int], repeats: int) -> dict[str, list[float]]:
        """Seconds of steps behind `ids` that verify a draft of `width - 1` tokens."""
        self._fill(ids)
        found: dict[str, list[float]] = {str(width): [] for width in widths}
        for _ in range(repeats):
            for width in widths:
                batch = self._batch(ids[:1], len(ids), ids[1:width])
                found[str(width)] += repeated_s(partial(self.runner.step, batch), 1)
        return found

    def prefill(self, ids: list[int], repeats: int) -> list[float]:
        """Seconds of a prompt in chunks."""
        return repeated_s(lambda: self._fill(ids), repeats)

    def chain(self, ids: list[int], count: int) -> dict[str, Any]:
        """A generation: seconds of the prompt and of each of `count` single steps behind it."""
        start_s = time.perf_counter()
        token = self._fill(ids)
        prefill_s = time.perf_counter() - start_s
        steps_s = []
        for place in range(count):
            start_s = time.perf_counter()
            token = self._step([token], len(ids) + place)
            steps_s.append(time.perf_counter() - start_s)
        return {"prefill_s": prefill_s, "steps_s": steps_s}

    def logits(self, ids: list[int], path: str) -> None:
        """Write the logits of every position to a NumPy file: fp32 [len(ids), vocab]."""
        found = []
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            batch = self._batch(chunk[:1], start, chunk[1:])
            found.append(self.runner.logits(batch).numpy().copy())
        np.save(path, np.concatenate(found))

    def roofline(self) -> dict[str, float]:
        """The bytes of a plain step in this format, and how fast this machine reads memory."""
        config = self.runner.config
        bandwidth = read_bandwidth()
        return {
            "weight_bytes": self.runner.weight_bytes,
            "kv_bytes_per_position": config.num_layers * config.kv_width * self._kv_item_bytes,
            "read_bytes_per_s": bandwidth.bytes_per_s,
            "read_threads": bandwidth.num_threads,
        }

    def _fill(self, ids: list[int]) -> int:
        """Compute a prompt; returns the token behind it."""
        token = 0
        for start in range(0, len(ids), CHUNK):
            token = self._step(ids[start : start + CHUNK], start)
        return token

    def _step(self, tokens: list[int], start: int) -> int:
        (result,) = self.runner.step(self._batch(tokens, start, [])).rows
        assert result is not None
        return result.token_ids[0]

    def _batch(self, tokens: list[int], start: int, draft: list[int]) -> PaddedBatch:
        row = PlannedRow("bench", 0, tuple(tokens), start, True, Choosing(_GREEDY))
        count = pages_for(start + len(tokens) + len(draft))
        pages = range(RESERVED_PAGES, RESERVED_PAGES + count)
        return pad([row], [CleanDraft(tuple(draft))], [pages], self.runner.layout)


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--weights", choices=get_args(WeightFormat), required=True)
    parser.add_argument("--kernels", choices=get_args(Kernels), default="auto")
    parser.add_argument("--threads", type=int, required=True)
    chosen = parser.parse_args()

    def load() -> tuple[str, dict[str, Operation]]:
        import torch

        torch.inference_mode().__enter__()  # for the whole life of this thread, as in the daemon
        runner = _Runner(chosen.model, chosen.weights, chosen.kernels, chosen.threads)
        return runner.version, runner.operations()

    serve(load)


if __name__ == "__main__":
    main()
