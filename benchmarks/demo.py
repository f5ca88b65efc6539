"""`make demo`: what speculation does, and that it changes no token.

Streams a chat answer and a repetitive, code-like continuation, each without drafts and with the
n-gram drafter, and compares. Exit status 1 if any token differs. One run each: for figures that
mean something, `benchmarks/speculation.py` alternates and takes medians.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any, get_args

from rich.console import Console
from rich.table import Table
from specd_client import Client, Delta

from specd.cli.child import running_daemon
from specd.cli.timing import Run, measure
from specd.model.formats import WeightFormat

CHAT = {"messages": [{"role": "user", "content": "Why is the sky blue? Answer in two sentences."}]}
CODE = {
    "text": """class Settings:
    def get_name(self):
        return self._values["name"]

    def get_size(self):
        return self._values["size"]

    def get_color(self):
        return self._values["color"]

    def get_width(self):
"""
}
PROMPTS: dict[str, dict[str, Any]] = {"chat": CHAT, "code": CODE}
MAX_NEW_TOKENS = 96


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", default="auto", choices=get_args(WeightFormat))
    chosen = parser.parse_args()
    console = Console()
    console.print(f"starting the daemon: {chosen.model}, weights {chosen.weights}")
    flags = ("--model", chosen.model, "--weights", chosen.weights, "--drafter", "ngram")
    with running_daemon(*flags) as child:
        runs = asyncio.run(_stream_all(child.address, console))
    identical = _report(console, runs, chosen.weights)
    console.print("the daemon has stopped")
    return 0 if identical else 1


async def _stream_all(address: str, console: Console) -> dict[str, tuple[Run, Run]]:
    runs = {}
    async with Client(address) as client:
        await measure(client, {"text": "warm"}, max_new_tokens=1)
        for name, prompt in PROMPTS.items():
            options = {"temperature": 0.0, "max_new_tokens": MAX_NEW_TOKENS}
            console.print(f"\n[bold]{name}[/bold], streamed with the n-gram drafter:")
            await _show(client, prompt, options, console)
            off = await measure(client, prompt, speculation=False, **options)
            runs[name] = (off, await measure(client, prompt, drafters=["ngram"], **options))
    return runs


async def _show(
    client: Client, prompt: dict[str, Any], options: dict[str, Any], console: Console
) -> None:
    async for event in client.stream(**prompt, drafters=["ngram"], **options):
        if isinstance(event, Delta):
            console.print(event.text, end="", style="cyan", markup=False, highlight=False)
    console.print()


def _report(console: Console, runs: dict[str, tuple[Run, Run]], weights: str) -> bool:
    table = Table(title=f"speculation off and on, weights {weights}")
    for column in ("prompt", "drafter", "tokens", "tokens/s", "steps", "per step", "pads"):
        table.add_column(column, justify="left" if column in ("prompt", "drafter") else "right")
    table.add_column("identical")
    identical = True
    for name, (off, on) in runs.items():
        same = off.token_ids == on.token_ids and off.text == on.text
        identical = identical and same
        table.add_row(*_cells(name, "none", off), "")
        table.add_row(*_cells("", "ngram", on), "yes" if same else "NO", end_section=True)
    table.caption = "per step: tokens, accepted draft tokens and the target's own"
    console.print(table)
    return identical


def _cells(name: str, drafter: str, run: Run) -> tuple[str, ...]:
    tally = run.tally
    numbers = (f"{run.tokens_per_s:.1f}", str(tally.verify_steps), f"{run.accepted_length:.2f}")
    return (name, drafter, str(len(run.token_ids)), *numbers, str(tally.pad_positions))


if __name__ == "__main__":
    sys.exit(main())
