"""llama.cpp through `llama-cpp-python`: a worker under its own interpreter.

    PYTHON -m benchmarks.peers.llama_python --model FILE --threads N --context N [--lookup]

Knows that package and `talk.py`; see `talk.py` for why it imports nothing else of ours. Its own
prompt lookup is the package's, with its own settings. Prompts are computed anew each time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.peers.talk import Operation, repeated_s, serve, timed_answer


class _Llama:
    """One context, and the operations on it."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        self._llama: Any = llama_cpp.Llama(
            chosen.model,
            n_ctx=chosen.context,
            n_threads=chosen.threads,
            n_threads_batch=chosen.threads,
            draft_model=LlamaPromptLookupDecoding() if chosen.lookup else None,
            logits_all=chosen.lookup or chosen.all_logits,
            verbose=False,
        )

    def operations(self) -> dict[str, Operation]:
        return {
            "run": self.run,
            "steps": self.steps,
            "prefill": self.prefill,
            "logits": self.logits,
        }

    def run(self, prompts: list[list[int]], num_tokens: int) -> list[dict[str, Any]]:
        """It serves one stream at a time; several wait for each other."""
        start_s = time.perf_counter()
        return [timed_answer(start_s, self._answer(ids, num_tokens)) for ids in prompts]

    def _answer(self, ids: list[int], num_tokens: int) -> list[tuple[float, list[int]]]:
        self._forget()
        arrivals: list[tuple[float, list[int]]] = []
        for token in self._llama.generate(ids, temp=0.0, top_k=1):
            arrivals.append((time.perf_counter(), [int(token)]))
            if len(arrivals) == num_tokens:
                break
        return arrivals

    def steps(self, ids: list[int], widths: Sequence[int], repeats: int) -> dict[str, list[float]]:
        """Seconds of steps of some widths behind `ids`, with the logits of every position."""
        self._forget()
        self._llama.eval(ids)
        found: dict[str, list[float]] = {str(width): [] for width in widths}
        for _ in range(repeats):
            for width in widths:
                found[str(width)] += repeated_s(partial(self._step, ids[:width], len(ids)), 1)
        return found

    def prefill(self, ids: list[int], repeats: int) -> list[float]:
        """Seconds of a prompt, with the logits of its last position."""

        def once() -> None:
            self._forget()
            self._llama.eval(ids)
            self._llama._ctx.get_logits()

        return repeated_s(once, repeats)

    def logits(self, ids: list[int], path: str) -> None:
        """Write the logits of every position to a NumPy file: fp32 [len(ids), vocab]."""
        import numpy

        self._forget()
        self._llama.eval(ids)
        numpy.save(path, self._llama.scores[: len(ids)])

    def _step(self, ids: list[int], past: int) -> None:
        context, batch = self._llama._ctx, self._llama._batch
        context.kv_cache_seq_rm(-1, past, -1)
        batch.set_batch(batch=ids, n_past=past, logits_all=True)
        context.decode(batch)
        context.get_logits()

    def _forget(self) -> None:
        self._llama.reset()
        self._llama._ctx.kv_cache_clear()


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--lookup", action="store_true")
    parser.add_argument("--all-logits", action="store_true", help="keep them, for `logits`")
    chosen = parser.parse_args()

    def load() -> tuple[str, dict[str, Operation]]:
        llama = _Llama(chosen)
        return llama.version, llama.operations()

    serve(load)


if __name__ == "__main__":
    main()
