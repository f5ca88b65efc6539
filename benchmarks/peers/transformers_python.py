"""transformers, which reads the same GGUF file into plain tensors: a worker of its own interpreter.

    PYTHON -m benchmarks.peers.transformers_python --model FILE --threads N --dtype bfloat16
        [--lookup N | --assistant FILE]

Knows that library and `talk.py`. Prompt lookup and assisted generation take one stream at a time;
plain decoding takes all in a batch.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from benchmarks.peers.talk import Operation, serve, timed_answer


class _Arrivals:
    """Called by `generate` with the prompt, then with new tokens, [rows] or [1, tokens]."""

    def __init__(self, num_rows: int) -> None:
        self._skips = True
        self._num_rows = num_rows
        self.rows: list[list[tuple[float, list[int]]]] = [[] for _ in range(num_rows)]

    def put(self, value: Any) -> None:
        if self._skips:  # the prompt
            self._skips = False
            return
        at, ids = time.perf_counter(), value.flatten().tolist()
        if self._num_rows == 1:
            self.rows[0].append((at, ids))
            return
        for row, token in zip(self.rows, ids, strict=True):
            row.append((at, [token]))

    def end(self) -> None:
        """Part of the interface of a streamer."""


class _Transformers:
    """One model, maybe with another that drafts."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        import torch
        import transformers

        torch.set_num_threads(chosen.threads)
        library: Any = transformers
        library.logging.set_verbosity_error()
        self._torch: Any = torch
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self._model = self._opened(library, chosen.model, chosen.dtype)
        self._options: dict[str, Any] = {}
        if chosen.lookup:
            self._options["prompt_lookup_num_tokens"] = chosen.lookup
        if chosen.assistant:
            assistant = self._opened(library, chosen.assistant, chosen.dtype)
            self._options["assistant_model"] = assistant

    def _opened(self, transformers: Any, file: str, dtype: str) -> Any:
        folder, name = os.path.split(os.path.abspath(file))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=getattr(self._torch, dtype)
        )
        config = model.generation_config
        config.eos_token_id = None  # answers go on past it
        config.pad_token_id = 0
        return model.eval()

    def run(self, prompts: list[list[int]], num_tokens: int) -> list[dict[str, Any]]:
        start_s = time.perf_counter()
        if self._options:
            rows = [self._generate([ids], num_tokens)[0] for ids in prompts]
        else:
            rows = self._generate(prompts, num_tokens)
        return [timed_answer(start_s, row) for row in rows]

    def _generate(
        self, prompts: list[list[int]], num_tokens: int
    ) -> list[list[tuple[float, list[int]]]]:
        arrivals = _Arrivals(len(prompts))
        ids = self._torch.tensor(prompts)
        with self._torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                max_new_tokens=num_tokens,
                do_sample=False,
                streamer=arrivals,
                **self._options,
            )
        return arrivals.rows


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--lookup", type=int, default=0, help="tokens that are looked up at most")
    parser.add_argument("--assistant", help="the file of a smaller model")
    chosen = parser.parse_args()

    def load() -> tuple[str, dict[str, Operation]]:
        peer = _Transformers(chosen)
        return peer.version, {"run": peer.run}

    serve(load)


if __name__ == "__main__":
    main()
