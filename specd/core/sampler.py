"""Tokens chosen from logits in the core: many positions in one call, without a sort or a copy.

Knows `SampleJob` and the core's interface; nothing of rows or drafts. Gives what `TorchSampler`
gives but where fp32 decides otherwise: docs/core.md says where.
Invariant: a result depends, to the bit, on its job alone, on every instruction set.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specd.core import library
from specd.core.decoder import CoreDecoder
from specd.core.layouts import Draw, Standing
from specd.device.sampler import SampleJob
from specd.device.sampling import is_greedy
from specd.engine.params import SamplingParams
from specd.engine.step_types import TokenLogprob
from specd.errors import StartFailed

_HOTTEST = float(np.finfo(np.float32).max)
_MASK64 = (1 << 64) - 1


class CoreSampler:
    """A `Sampler`, and what else is asked of logits. All methods belong to one thread.

    Rows are fp32 [vocab], contiguous, at any address, and only read.
    """

    def __init__(
        self, vocab_size: int, *, isa: str, threads: int = 1, decoder: CoreDecoder | None = None
    ) -> None:
        """The threads are those of `decoder`, or `threads` of its own.

        Raises: StartFailed where memory is short, or the vocabulary exceeds 2^20 tokens.
        """
        self._core = library.opened()
        self._decoder = decoder  # has to outlive this
        self._vocab_size = vocab_size
        self._handle = self._core.specd_sampler_create(
            None if decoder is None else decoder.handle, vocab_size, threads, library.ISAS[isa]
        )
        if not self._handle:
            raise StartFailed(f"the core cannot sample from a vocabulary of {vocab_size} tokens")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._core.specd_sampler_destroy(self._handle)

    def sample(self, jobs: Sequence[SampleJob]) -> list[int]:
        draws = (Draw * len(jobs))(*map(self._draw, jobs))
        tokens = (ctypes.c_int64 * len(jobs))()
        self._core.specd_sample(self._handle, draws, len(jobs), tokens)
        return list(tokens)

    def scores(self, job: SampleJob) -> Tensor:
        made = torch.empty(self._vocab_size)
        self._core.specd_scores(self._handle, self._draw(job), made.data_ptr())
        return made

    def examine(self, rows: Tensor) -> tuple[list[int], list[bool]]:
        """fp32 [rows, vocab] -> the lowest id of each row's largest logit, and whether that is
        finite and no logit of the row a NaN; else the id means nothing."""
        assert rows.is_contiguous() and rows.shape[1] == self._vocab_size
        ids = (ctypes.c_int64 * len(rows))()
        finite = (ctypes.c_uint8 * len(rows))()
        self._core.specd_examine(self._handle, rows.data_ptr(), len(rows), ids, finite)
        return list(ids), list(map(bool, finite))

    def token_logprob(self, logits: Tensor, token: int, top: int) -> TokenLogprob:
        """As `token_logprob` of `specd/device/logprobs.py`."""
        best, logprobs = (ctypes.c_int64 * top)(), (ctypes.c_float * top)()
        standing = Standing(
            self._address(logits),
            token,
            top,
            ctypes.addressof(best),
            ctypes.addressof(logprobs),
        )
        self._core.specd_measure(self._handle, standing, 1)
        count = standing.num_best
        alternatives = tuple(zip(best[:count], logprobs[:count], strict=True))
        return TokenLogprob(token, standing.logprob, standing.rank, alternatives)

    def _draw(self, job: SampleJob) -> Draw:
        params = job.params
        return Draw(
            self._address(job.logits),
            params.seed & _MASK64,
            job.position,
            params.top_k,
            params.top_p,
            _temperature(params),
            math.log(params.min_p) if params.min_p > 0 else -math.inf,
        )

    def _address(self, row: Tensor) -> int:
        assert row.shape == (self._vocab_size,) and row.is_contiguous()
        assert row.dtype == torch.float32
        return row.data_ptr()


def _temperature(params: SamplingParams) -> float:
    """0 for greedy. Beyond fp32 its largest number: what is impossible stays so, and is no NaN."""
    return 0.0 if is_greedy(params) else min(params.temperature, _HOTTEST)
