"""Does a row's result depend on what ran beside it? Asked at start-up, of this machine.

Runs the operations of a step, at the shapes that will run, in several company and compares bits:
every linear layer's shape, the norms, the gate, paged attention with every window in chunks, alone
and among neighbours, and what chooses tokens (`sampler_probe.py`). Knows nothing of requests.
Invariant: a finding is a fact of this machine and torch build, never a tolerance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from specd.device.eager import EagerRunner
from specd.device.sampler_probe import probe_sampler, same_bits
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, PaddedRow
from specd.kv.pages import PAGE_SIZE, RESERVED_PAGES
from specd.model.activation import ACTIVATIONS
from specd.model.attention import attend

COUNTS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 33, 64, 128)
HEAD_COUNTS = (1, 2, 3, 5, 8, 17)  # the head only sees sampled positions
_POSITION_STRIDE = 7
_LENGTH, _FULL_LENGTH = 600, 1000  # of the text that attention runs over
_GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """findings: one sentence per operation that depends on its company. seconds: what it took."""

    num_checks: int
    findings: tuple[str, ...]
    seconds: float

    @property
    def invariant(self) -> bool:
        return not self.findings


def probe(runner: EagerRunner, *, full: bool = False) -> ProbeReport:
    """Compare every operation with itself; belongs to the device thread.

    full: at every number of positions that a step has, and at every position of a text.
    """
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(0)
    outcomes = [
        *_row_operations(runner, generator, full=full),
        *(
            outcome
            for window in sorted(set(runner.decoder.config.windows))
            for outcome in _attention(runner, window, generator, full=full)
        ),
        *probe_sampler(runner.sampler, runner.decoder.config.vocab_size, generator),
    ]
    findings = tuple(finding for finding in outcomes if finding is not None)
    return ProbeReport(len(outcomes), findings, time.perf_counter() - start)


def _row_operations(
    runner: EagerRunner, generator: torch.Generator, *, full: bool
) -> Iterator[str | None]:
    config, weights = runner.decoder.config, runner.decoder.weights
    layer = weights.layers[0]
    query = config.num_heads * config.head_dim
    operations: list[tuple[str, int, Callable[[Tensor], Tensor], tuple[int, ...]]] = [
        ("qkv", config.hidden_size, layer.qkv, COUNTS),
        ("attention output", query, layer.attn_output, COUNTS),
        ("gate and up", config.hidden_size, layer.gate_up, COUNTS),
        ("down", config.ffn_size, layer.ffn_down, COUNTS),
        ("head", config.hidden_size, weights.head, HEAD_COUNTS),
        ("norm", config.hidden_size, _norm(layer.attn_norm, config.norm_eps), COUNTS),
        ("gate", config.ffn_size, ACTIVATIONS[config.family.activation], COUNTS),
    ]
    if layer.q_norm is not None:
        norm = _norm(layer.q_norm, config.norm_eps)
        operations.append(("norm of a head", config.head_dim, norm, COUNTS))
    for name, width, operation, few in operations:
        counts = runner.layout.packed_buckets if full else few
        x = torch.randn(max(counts), width, generator=generator).to(weights.dtype)
        yield _compare_counts(name, operation, x, counts)


def _norm(weight: Tensor, eps: float) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.rms_norm(x, (x.shape[-1],), weight, eps)


def _compare_counts(
    name: str, operation: Callable[[Tensor], Tensor], x: Tensor, counts: tuple[int, ...]
) -> str | None:
    whole = operation(x)
    for count in counts:
        start = x.shape[0] - count  # another place than in the whole, where the counts differ
        if not same_bits(operation(x[start:].clone()), whole[start:]):
            return f"{name}: {count} positions differ from {x.shape[0]}"
    return None


def _attention(
    runner: EagerRunner, window: int, generator: torch.Generator, *, full: bool
) -> Iterator[str | None]:
    config, dtype = runner.decoder.config, runner.decoder.weights.dtype
    length = min(_FULL_LENGTH if full else _LENGTH, config.context_length)
    num_pages = -(-length // PAGE_SIZE)
    shape = runner.decoder.cache_shape(2 * num_pages + RESERVED_PAGES, PAGE_SIZE)[1:]
    cache = torch.randn(shape, generator=generator).to(dtype)
    cache[:RESERVED_PAGES] = 0
    fused = torch.randn(length, config.fused_heads, config.head_dim, generator=generator)
    fused = fused.to(dtype)
    pages = tuple(range(RESERVED_PAGES, RESERVED_PAGES + num_pages))
    others = tuple(range(RESERVED_PAGES + num_pages, RESERVED_PAGES + 2 * num_pages))

    def run(rows: list[tuple[int, int, tuple[int, ...]]]) -> Tensor:
        """rows of (first position, count, pages)."""
        parts = torch.cat([fused[first : first + count] for first, count, _ in rows])
        placed, offset = [], 0
        for first, count, own in rows:
            placed.append(_row(offset, first, count, own))
            offset += count
        layout = runner.device_layout(tuple(placed), offset, window)
        return attend(parts, cache, layout, config.attention_scale)

    # Many: where attention depends on its company, most rows still agree by chance in bf16.
    stride = 1 if full else _POSITION_STRIDE
    positions = sorted({*range(0, length, stride), 127 % length, length - 1})
    alone = {first: run([(first, 1, pages)]) for first in positions}
    whole = run([(0, length, pages)])
    for first in positions:
        agrees = same_bits(whole[first : first + 1], alone[first])
        chunk = f"attention: position {first} in a chunk of {length} differs from alone"
        yield None if agrees else chunk
        count = min(5, length - first)
        few = run([(0, min(3, length), others), (first, count, pages), (length - 1, 1, others)])
        here = min(3, length)
        agrees = same_bits(few[here : here + 1], alone[first])
        yield None if agrees else f"attention: position {first} among neighbours differs from alone"


def _row(offset: int, first: int, count: int, pages: tuple[int, ...]) -> PaddedRow:
    return PaddedRow(
        "probe", 0, offset, count, count, first, (), False, 0, pages, Choosing(_GREEDY)
    )
