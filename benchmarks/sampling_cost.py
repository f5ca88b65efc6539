"""What choosing a token costs per row, in the core and in torch, by vocabulary and parameters.

    python -m benchmarks.sampling_cost [--rounds 60] [--threads 1]

Prints a table of medians in microseconds per row, for calls of 1 and of 8 rows, and as the last
line one JSON document. Samplers take turns on the same rows, whose spread and peaks are those of a
language model's logits; torch has one thread. A core that is called behind torch finds little of
what it needs in a cache, as behind a step; `again` is the same call once more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from specd.core import library
from specd.core.sampler import CoreSampler
from specd.device.sampler import SampleJob, Sampler, TorchSampler
from specd.engine.params import SamplingParams

VOCABS = (49_152, 151_936)
COUNTS = (1, 8)
PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "temperature 0.8": SamplingParams(temperature=0.8),
    "top_p 0.95": SamplingParams(top_p=0.95),
    "top_k 50": SamplingParams(top_k=50),
    "all": SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.05),
}
TARGETS_US = {49_152: 60.0, 151_936: 200.0}  # of the core, one row on one thread


def model_like(rows: int, vocab: int) -> Tensor:
    """A standard deviation of 2.6, the largest 15 to 18 above the mean, and some close to it."""
    generator = torch.Generator().manual_seed(vocab)
    made = torch.randn(rows, vocab, generator=generator) * 2.6
    peaks = torch.randint(vocab, (rows, 60), generator=generator)
    heights = 15 - torch.rand(rows, 60, generator=generator) * 8
    heights[:, 0] = 16.5
    return made.scatter_(1, peaks, heights)


def measure(
    samplers: Mapping[str, Sampler], rows: Tensor, params: SamplingParams, rounds: int
) -> dict[str, float]:
    """Microseconds per row of each sampler, medians."""
    times: dict[str, list[float]] = {}
    for number in range(rounds):
        seeded = replace(params, seed=number)
        jobs = [SampleJob(row, seeded, number) for row in rows]
        torch_sampler = samplers["torch"]
        for name, sampler in samplers.items():
            torch_sampler.sample(jobs)
            for column in (name, f"{name} again"):
                started = time.perf_counter()
                sampler.sample(jobs)
                taken = (time.perf_counter() - started) / len(rows) * 1e6
                times.setdefault(column, []).append(taken)
    del times["torch again"]
    return {column: round(statistics.median(taken[1:]), 1) for column, taken in times.items()}


def samplers_for(vocab: int, threads: int) -> dict[str, Sampler]:
    """torch, the core's fastest instruction set, and its slowest if that is another."""
    there = library.supported()
    isas = dict.fromkeys((there[0], there[-1]))
    core = {isa: CoreSampler(vocab, isa=isa, threads=threads) for isa in isas}
    return {"torch": TorchSampler(), **core}


def main() -> None:
    """Measure every combination and print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="calls per combination")
    parser.add_argument("--threads", type=int, default=1, help="of the core")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: list[dict[str, object]] = []
    for vocab in VOCABS:
        samplers = samplers_for(vocab, options.threads)
        for name, params in PARAMS.items():
            for count in COUNTS:
                taken = measure(samplers, model_like(count, vocab), params, options.rounds)
                if not results:
                    print(f"{'parameters':<18}{'entries':>9}{'rows':>6}", *_cells(taken), sep="")
                print(f"{name:<18}{vocab:>9}{count:>6}", *_cells(taken.values()), sep="")
                results.append({
                    "params": name,
                    "entries": vocab,
                    "rows": count,
                    "us_per_row": taken,
                })
    print(
        json.dumps({
            "benchmark": "sampling_cost",
            "torch": torch.__version__,
            "threads": options.threads,
            "rounds": options.rounds,
            "targets_us": TARGETS_US,
            "results": results,
        })
    )


def _cells(values: Iterable[object]) -> Iterator[str]:
    return (f"{value:>19}" for value in values)


if __name__ == "__main__":
    main()
