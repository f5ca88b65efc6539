"""What a step costs by its number of positions, and what the way through gRPC adds to one.

Knows two workers, specd's runner and llama.cpp; asks them in turn. A step of K positions verifies a
draft of K - 1 tokens: all its logits are wanted. Invariant: figures of one row of a result come
from the same rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.contract import Peer
from benchmarks.peers.worker import Worker

WIDTHS = (1, 4, 8, 32)
CONTEXT = 256
PREFILL = 512
_REPEATS = 8


def step_costs(
    workers: dict[str, Worker], ids: Sequence[int], context_length: int, rounds: int
) -> list[dict[str, Any]]:
    """Milliseconds by width, ratios to one position, and prefill. Raises PeerFailed."""
    behind = list(ids[: min(CONTEXT, context_length - max(WIDTHS))])
    prompt = list(ids[: min(PREFILL, context_length)])
    steps: dict[str, list[dict[int, float]]] = {name: [] for name in workers}
    prefills: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            told = worker.ask("steps", ids=behind, widths=list(WIDTHS), repeats=_REPEATS)
            steps[name].append({int(width): statistics.median(told[width]) for width in told})
            prefills[name] += worker.ask("prefill", ids=prompt, repeats=1)
    return [
        {
            "contender": name,
            "context": len(behind),
            "ms": {
                str(width): statistics.median(one[width] for one in steps[name]) * 1e3
                for width in WIDTHS
            },
            "ratios": {
                str(width): statistics.median(one[width] / one[1] for one in steps[name])
                for width in WIDTHS
            },
            "prefill_tokens": len(prompt),
            "prefill_tokens_per_s": len(prompt) / statistics.median(prefills[name]),
        }
        for name in workers
    ]


def path_overhead(
    runner: Worker, daemon: Peer, prompts: Sequence[list[int]], new_tokens: int
) -> dict[str, Any]:
    """A plain stream through the daemon beside the runner's own steps at the same positions.

    All times are in milliseconds; the differences are medians over the rounds.

    Raises:
        PeerFailed: either of the two.
    """
    rounds = []
    for prompt in prompts:
        (answer,) = daemon.run([prompt], new_tokens)
        own = runner.ask("chain", ids=prompt, count=new_tokens - 1)
        rounds.append({
            "gap_ms": statistics.median(answer.timing.gaps_s) * 1e3,
            "step_ms": statistics.median(own["steps_s"]) * 1e3,
            "first_token_ms": answer.timing.first_token_s * 1e3,
            "prefill_ms": own["prefill_s"] * 1e3,
        })

    def median(name: str, less: str | None = None) -> float:
        return float(statistics.median(one[name] - (one[less] if less else 0.0) for one in rounds))

    return {
        "prompt_tokens": len(prompts[0]),
        "gap_ms": median("gap_ms"),
        "step_ms": median("step_ms"),
        "overhead_ms_per_token": median("gap_ms", "step_ms"),
        "first_token_ms": median("first_token_ms"),
        "prefill_ms": median("prefill_ms"),
        "overhead_ms_first_token": median("first_token_ms", "prefill_ms"),
    }
