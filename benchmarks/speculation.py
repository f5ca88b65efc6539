"""Speculation against plain decoding: alternating runs on one daemon, medians and ratios.

    python -m benchmarks.speculation [--model NAME] [--weights auto] [--rounds 5]

Prompts of five kinds, greedy. Every round runs each prompt without drafts and with the n-gram
drafter, one after the other, so that a slow minute of the machine hits both. Prints a table; the
last line is one JSON document. Exit status 1 if any token differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from dataclasses import dataclass, field
from typing import Any, get_args

from rich.console import Console
from rich.table import Table
from specd_client import Client

from benchmarks.demo import CHAT, CODE
from specd.cli.child import running_daemon
from specd.cli.timing import Run, measure
from specd.model.formats import WeightFormat

COPY = {
    "text": "The list of parts, twice.\n"
    + "".join(f"- part {i}: bolt M{i}, steel, {i * 7} pieces\n" for i in range(3, 12))
    + "The list again:\n- part 3: bolt M3, steel,"
}
JSON = {
    "text": "[\n"
    + "".join(
        f'  {{"id": {i}, "name": "item {i}", "price": {i}0, "in_stock": true}},\n'
        for i in range(1, 4)
    )
    + '  {"id": 4, "name": "item 4", "price": 40,'
}
OPEN = {"messages": [{"role": "user", "content": "Tell me a story about a lighthouse keeper."}]}
PROMPTS: dict[str, dict[str, Any]] = {
    "code": CODE,
    "copy": COPY,
    "json": JSON,
    "chat": CHAT,
    "open": OPEN,
}


@dataclass(slots=True)
class Contest:
    """The runs of one prompt, plain and drafted, in order."""

    plain: list[Run] = field(default_factory=list)
    drafted: list[Run] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return len({run.token_ids for run in self.plain + self.drafted}) == 1

    @property
    def ratio(self) -> float:
        """Median of the ratios, pair by pair."""
        pairs = zip(self.plain, self.drafted, strict=True)
        return statistics.median(on.tokens_per_s / off.tokens_per_s for off, on in pairs)


async def contest(
    address: str, rounds: int, num_tokens: int, max_draft_tokens: int | None
) -> dict[str, Contest]:
    """Run all prompts, alternating."""
    contests = {name: Contest() for name in PROMPTS}
    options = {"temperature": 0.0, "max_new_tokens": num_tokens, "ignore_eos": True}
    async with Client(address) as client:
        for _ in range(rounds):
            for name, prompt in PROMPTS.items():
                both = contests[name]
                both.plain.append(await measure(client, prompt, speculation=False, **options))
                both.drafted.append(
                    await measure(
                        client,
                        prompt,
                        drafters=["ngram"],
                        max_draft_tokens=max_draft_tokens,
                        **options,
                    )
                )
    return contests


def main() -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", default="auto", choices=get_args(WeightFormat))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--max-draft-tokens", type=int)
    chosen = parser.parse_args()
    flags = ("--model", chosen.model, "--weights", chosen.weights, "--drafter", "ngram")
    with running_daemon(*flags) as child:
        contests = asyncio.run(
            contest(child.address, chosen.rounds, chosen.tokens, chosen.max_draft_tokens)
        )
    Console().print(_table(contests, chosen.weights))
    print(json.dumps({"settings": vars(chosen), "results": _results(contests)}))
    return 0 if all(both.identical for both in contests.values()) else 1


def _results(contests: dict[str, Contest]) -> dict[str, Any]:
    return {
        name: {
            "plain_tokens_per_s": round(_median(both.plain), 1),
            "ngram_tokens_per_s": round(_median(both.drafted), 1),
            "ratio": round(both.ratio, 3),
            "accepted_length": round(both.drafted[0].accepted_length, 3),
            "identical": both.identical,
        }
        for name, both in contests.items()
    }


def _median(runs: list[Run]) -> float:
    return statistics.median(run.tokens_per_s for run in runs)


def _table(contests: dict[str, Contest], weights: str) -> Table:
    table = Table(title=f"tokens/s, medians, weights {weights}")
    for column in ("prompt", "plain", "ngram", "ratio", "tokens per step", "identical"):
        table.add_column(column, justify="right")
    for name, result in _results(contests).items():
        table.add_row(name, *(str(value) for value in result.values()))
    return table


if __name__ == "__main__":
    sys.exit(main())
