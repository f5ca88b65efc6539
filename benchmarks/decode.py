"""One stream, specd and its peers in turn, and what a step costs.

    python -m benchmarks.decode --model smollm2-135m --llama-server BINARY --llama-python PYTHON

Every contender gets the same prompts, as token ids, and answers greedily with the same number of
tokens. Beside the contest: steps of 1, 4, 8 and 32 positions in specd's runner and in llama.cpp,
what the way through gRPC adds, and the bound that memory sets. The last line is one JSON document.
See docs/benchmarks.md.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from benchmarks.contenders import llama_python_worker
from benchmarks.peers.contract import PeerAbsent
from benchmarks.peers.llama_bench import prompt_speeds
from benchmarks.peers.specd_daemon import specd_peer
from benchmarks.peers.worker import Worker
from benchmarks.race import Race, main, parser_of
from benchmarks.step_cost import PREFILL, WIDTHS, path_overhead, step_costs
from specd.cli.child import Child


def _beside(race: Race, runner: Worker, child: Child, document: dict[str, Any]) -> None:
    """Step costs, and the way through gRPC. Raises PeerAbsent, PeerFailed."""
    rounds, ids = race.course.rounds, race.prompts.ids
    workers = {"specd": runner}
    with ExitStack() as stack:
        if race.chosen.llama_python is not None:
            try:
                room = min(race.context_length, PREFILL)
                field = replace(race.field, context=max(race.field.context, room))
                peer = llama_python_worker(race.chosen.llama_python, field)
                workers["llama.cpp"] = stack.enter_context(peer)
            except PeerAbsent:
                pass  # the list of contenders says so
        document["step_costs"] = step_costs(workers, ids, race.context_length, rounds)
    if race.chosen.llama_bench is not None:
        sizes = (*WIDTHS, document["step_costs"][0]["prefill_tokens"])
        document["llama_bench"] = prompt_speeds(
            race.chosen.llama_bench, race.model, race.chosen.threads, sizes, rounds
        )
    shortest = min(race.course.prompt_tokens)
    with specd_peer(child, None) as daemon:
        prompts = [race.prompts.of(shortest, 1, number)[0] for number in range(rounds)]
        document["path"] = path_overhead(runner, daemon, prompts, race.course.new_tokens)


if __name__ == "__main__":
    parser = parser_of(__doc__, streams=1)
    parser.add_argument("--llama-bench", metavar="BINARY", help="its own figures, in the JSON line")
    sys.exit(main("decode", parser, _beside))
