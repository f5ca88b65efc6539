"""What prompt lookup costs per row and step, by context length and kind of text.

    python benchmarks/ngram_cost.py [--rounds 400]

Prints a table of medians (propose and observe in microseconds per row, begin in milliseconds per
prompt, memory of one request's index) and, as the last line, one JSON document. A step of a row is
one propose with a budget of 8 and one observe of 3 tokens, through the same calls as the daemon's.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable

from drafters.contract import DraftContext, SamplingHint, TokenView
from drafters.ngram import NgramDrafter

NUM_IDS = 49_152
CONTEXTS = (100, 1_000, 8_000)
NUM_ROWS = 8
BUDGET = 8
RUN = 3  # tokens committed per step
TARGETS_8K = {"step_us": 30.0, "begin_ms": 15.0}
HINT = SamplingHint(temperature=0.0, seed=0)

Text = Callable[[random.Random, int], list[int]]


def random_text(rng: random.Random, length: int) -> list[int]:
    """Ids without any repetition worth the name: every look-up fails at every order."""
    return [rng.randrange(NUM_IDS) for _ in range(length)]


def repetitive_text(rng: random.Random, length: int) -> list[int]:
    """Phrases of a small book in random order, as in code or JSON: most look-ups succeed."""
    book = [[rng.randrange(NUM_IDS) for _ in range(rng.randrange(3, 12))] for _ in range(40)]
    text: list[int] = []
    while len(text) < length:
        text.extend(rng.choice(book))
    return text[:length]


def measure(text: Text, context: int, rounds: int) -> dict[str, float]:
    """Medians for `NUM_ROWS` requests whose text has `context` tokens."""
    rng = random.Random(context)
    whole = [text(rng, context + RUN * rounds) for _ in range(NUM_ROWS)]
    drafter = NgramDrafter()
    begins, proposes, observes, drafted = [], [], [], 0
    for row, tokens in enumerate(whole):
        started = time.perf_counter()
        drafter.begin(str(row), TokenView(tokens[:context]), HINT)
        begins.append(time.perf_counter() - started)
    for number in range(rounds):
        end = context + number * RUN
        batch = [DraftContext(str(row), whole[row]) for row in range(NUM_ROWS)]
        started = time.perf_counter()
        answers = drafter.propose(batch, [BUDGET] * NUM_ROWS)
        proposed = time.perf_counter()
        for row in range(NUM_ROWS):
            drafter.observe(str(row), whole[row][end : end + RUN], 0)
        observes.append((time.perf_counter() - proposed) / NUM_ROWS)
        proposes.append((proposed - started) / NUM_ROWS)
        drafted += sum(1 for answer in answers if answer)
    propose_us = statistics.median(proposes) * 1e6
    observe_us = statistics.median(observes) * 1e6
    return {
        "propose_us": round(propose_us, 2),
        "observe_us": round(observe_us, 2),
        "step_us": round(propose_us + observe_us, 2),
        "begin_ms": round(statistics.median(begins) * 1e3, 3),
        "rows_drafted": round(drafted / rounds / NUM_ROWS, 3),
        "index_mb": round(index_bytes(whole[0][:context]) / 1e6, 2),
    }


def index_bytes(tokens: list[int]) -> int:
    """Memory that one request's index takes."""
    drafter = NgramDrafter()
    tracemalloc.start()
    drafter.begin("one", tokens, HINT)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size


def main() -> None:
    """Measure every combination and print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400, help="steps per combination")
    rounds = parser.parse_args().rounds
    results: list[dict[str, float | str]] = []
    print(f"{'text':<12}{'context':>8}{'propose us':>12}{'observe us':>12}{'step us':>10}", end="")
    print(f"{'begin ms':>10}{'drafted':>9}{'MB':>8}")
    for name, text in (("repetitive", repetitive_text), ("random", random_text)):
        for context in CONTEXTS:
            found = measure(text, context, rounds)
            results.append({"text": name, "context": context, **found})
            print(f"{name:<12}{context:>8}{found['propose_us']:>12}", end="")
            print(f"{found['observe_us']:>12}{found['step_us']:>10}{found['begin_ms']:>10}", end="")
            print(f"{found['rows_drafted']:>9}{found['index_mb']:>8}")
    longest = [result for result in results if result["context"] == CONTEXTS[-1]]
    met = all(float(r[key]) <= limit for r in longest for key, limit in TARGETS_8K.items())
    print(
        json.dumps({
            "benchmark": "ngram_cost",
            "python": platform.python_version(),
            "rows": NUM_ROWS,
            "budget": BUDGET,
            "run": RUN,
            "rounds": rounds,
            "targets_at_8000": TARGETS_8K,
            "targets_met": met,
            "results": results,
        })
    )


if __name__ == "__main__":
    main()
