"""Every client against every scenario of clients/conformance, over real sockets.

The drivers do and tell, the scenarios say what must be seen, this file compares. It also packs the
Node client and uses it as its users do.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from specd_client.request import request_from
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import generation_pb2_grpc

from benchmarks.toy_gguf import build_toy_model
from tests.support.daemon import Daemon, daemon_process, environment, spawned
from tests.support.node import node_path

CLIENTS = Path(__file__).parents[2] / "clients"
NODE_CLIENT = CLIENTS / "node"
DRIVERS = {
    "python": [sys.executable, str(CLIENTS / "python/conformance.py")],
    "node": ["node", str(NODE_CLIENT / "dist/conformance/driver.js")],
}
SCENARIOS: dict[str, dict[str, Any]] = {
    scenario["name"]: scenario
    for scenario in json.loads((CLIENTS / "conformance/scenarios.json").read_text())
}
# Bound of runs that take a few seconds on a quiet machine.
LIMIT_S = 40.0
Json = dict[str, Any]


@pytest.fixture(scope="session")
def node() -> str:
    """The path of Node, and the promise that clients/node is built from what is in the tree."""
    found = node_path()
    built = NODE_CLIENT / "dist/conformance/driver.js"
    if not built.exists():
        pytest.fail("clients/node is not built: run `npm ci && npm run build` in it")
    sources = [CLIENTS.parent / "proto/service_config.json", NODE_CLIENT / "package-lock.json"]
    for folder in (
        CLIENTS.parent / "proto/specd",
        NODE_CLIENT / "test",
        NODE_CLIENT / "conformance",
    ):
        sources += folder.rglob("*.*")
    sources += [*(NODE_CLIENT / "src").glob("*.*"), *(NODE_CLIENT / "scripts").glob("*.*")]
    newer = [path.name for path in sources if path.stat().st_mtime > built.stat().st_mtime]
    if newer:
        pytest.fail(f"clients/node was built before {newer} changed: run `npm run build` in it")
    return found


@pytest.fixture(scope="module")
def daemon_for(models: Path) -> Iterator[Callable[[Json], Daemon]]:
    """Gives the daemon that a scenario asks for; scenarios that ask for the same share one."""
    started: dict[str, Daemon] = {}
    with ExitStack() as stack:

        def give(wanted: Json) -> Daemon:
            key = json.dumps(wanted)
            if key not in started:
                model = _toy(models, wanted["context_length"])
                started[key] = stack.enter_context(daemon_process(model, *wanted["flags"]))
            return started[key]

        yield give


def _toy(models: Path, context_length: int) -> Path:
    path = models / f"conformance-{context_length}.gguf"
    if not path.exists():
        build_toy_model(path, context_length=context_length)
    return path


def _run(command: list[str], stdin: str = "", cwd: Path | None = None) -> str:
    """Runs a program to its end and returns its output; its failure is the test's."""
    done = subprocess.run(
        command,
        input=stdin.encode(),
        capture_output=True,
        timeout=LIMIT_S,
        cwd=cwd,
        env=environment(),
        check=False,
    )
    told = done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{told}"
    return done.stdout.decode()


def _observed(command: list[str], daemon: Daemon, scenario: Json) -> Json:
    """What a driver saw."""
    job = {
        "address": daemon.address,
        "admin_address": daemon.admin_address,
        "action": scenario["action"],
        "parameters": scenario["parameters"],
    }
    seen: Json = json.loads(_run(command, json.dumps(job)))
    return seen


def _reference(daemon: Daemon, parameters: Json) -> Json:
    """The answer of the daemon to a unary Generate, as drivers tell an answer."""
    options = parameters["options"] | {"seed": int(parameters["options"]["seed"])}
    if "logit_bias" in options:
        options["logit_bias"] = {int(key): bias for key, bias in options["logit_bias"].items()}
    text, token_ids, messages = map(parameters["prompt"].get, ("text", "token_ids", "messages"))
    streamed = request_from(text, token_ids, messages, options)
    request = pb.GenerateRequest.FromString(streamed.SerializeToString())
    with grpc.insecure_channel(daemon.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        whole = stub.Generate(request, timeout=LIMIT_S)
    first, *others = map(_sequence, whole.sequences)
    total = whole.speculation.total
    return {
        "request_id": whole.started.request_id,
        "model": whole.started.model,
        "prompt_tokens": whole.started.prompt_tokens,
        "seed": str(whole.started.seed),
        "arithmetic_fingerprint": whole.started.arithmetic_fingerprint,
        "sequence_seeds": [str(seed) for seed in whole.started.sequence_seeds],
        "prompt_logprobs": list(map(_logprob, whole.started.prompt_logprobs)),
        **first,
        "others": others,
        "completion_tokens": whole.usage.completion_tokens,
        "verify_steps": total.verify_steps,
        "draft_tokens": total.draft_tokens,
        "accepted_draft_tokens": total.accepted_draft_tokens,
        "accepted_length_histogram": list(total.accepted_length_histogram),
    }


def _sequence(sequence: pb.GeneratedSequence) -> Json:
    matched = sequence.finish.WhichOneof("matched")
    return {
        "text": sequence.text,
        "token_ids": list(sequence.token_ids),
        "logprobs": list(map(_logprob, sequence.logprobs)),
        "steps": [
            {
                "drafter": step.drafter if step.HasField("drafter") else None,
                "draft_tokens": step.draft_tokens,
                "accepted_draft_tokens": step.accepted_draft_tokens,
            }
            for step in sequence.steps
        ],
        "finish_reason": pb.FinishReason.Name(sequence.finish.finish_reason).removeprefix(
            "FINISH_REASON_"
        ),
        "matched_token_id": None,
        "matched_stop_string": None,
        **({matched: getattr(sequence.finish, matched)} if matched else {}),
    }


def _logprob(entry: pb.TokenLogprob) -> Json:
    return {
        "token_id": entry.token_id,
        "logprob": entry.logprob if entry.HasField("logprob") else None,
        "rank": entry.rank if entry.HasField("rank") else None,
        "alternatives": [
            {"token_id": other.token_id, "logprob": other.logprob} for other in entry.alternatives
        ],
    }


def _differences(pattern: Any, seen: Any, reference: Json, place: str = "") -> Iterator[str]:
    """Where an observation is not what a pattern of clients/conformance/README.md stands for."""
    match pattern:
        case {"$any": True}:
            if seen is None:
                yield f"{place}: nothing, for anything"
        case {"$from": low, "$to": high}:
            if not (isinstance(seen, int | float) and low <= seen <= high):
                yield f"{place}: {seen!r}, for {low} to {high}"
        case {"$reference": True, **others}:
            both = reference | others
            if "request_id" not in others:
                both["request_id"] = {"$any": True}  # drawn anew for each
            yield from _differences(both, seen, reference, place)
        case dict() if isinstance(seen, dict) and pattern.keys() == seen.keys():
            for key, part in pattern.items():
                yield from _differences(part, seen[key], reference, f"{place}.{key}")
        case list() if isinstance(seen, list) and len(pattern) == len(seen):
            for index, part in enumerate(pattern):
                yield from _differences(part, seen[index], reference, f"{place}[{index}]")
        case dict() | list():
            yield f"{place}: {seen!r}, for {pattern!r}"
        case _:
            # True is not 1, but 1 is 1.0: JSON writers differ in it.
            if pattern != seen or isinstance(pattern, bool) is not isinstance(seen, bool):
                yield f"{place}: {seen!r}, for {pattern!r}"


def _check(client: str, node: str | None, daemon: Daemon, scenario: Json) -> None:
    command = [node if node and part == "node" else part for part in DRIVERS[client]]
    reference = {}
    if "$reference" in json.dumps(scenario["expect"]):
        options = scenario["parameters"]["options"]
        reference = _reference(daemon, scenario["parameters"])
        assert reference["token_ids"], "a reference without tokens compares nothing"
        assert bool(reference["logprobs"]) is ("top_logprobs" in options)
        assert bool(reference["prompt_logprobs"]) is ("prompt_logprobs" in options)
        assert len(reference["others"]) + 1 == options.get("num_sequences", 1)
    seen = _observed(command, daemon, scenario)
    differences = list(_differences(scenario["expect"], seen, reference))
    assert not differences, "\n".join(differences)
    daemon.wait_quiet()
    daemon.check_log()


@pytest.mark.parametrize(
    ("client", "name"),
    [pytest.param(c, name, id=f"{c}-{name}") for name in SCENARIOS for c in DRIVERS],
)
def test_a_client_sees_what_the_scenario_promises(
    client: str,
    name: str,
    daemon_for: Callable[[Json], Daemon],
    models: Path,
    request: pytest.FixtureRequest,
) -> None:
    scenario = SCENARIOS[name]
    node = request.getfixturevalue("node") if client == "node" else None
    if not scenario["daemon"].get("drained"):
        _check(client, node, daemon_for(scenario["daemon"]), scenario)
        return
    model = _toy(models, scenario["daemon"]["context_length"])
    with spawned(model, *scenario["daemon"]["flags"]) as daemon:
        daemon.wait_ready()
        _check(client, node, daemon, scenario)
        daemon.terminate()
        assert daemon.wait_exit() == 0
        daemon.check_log()


def test_the_comparison_sees_each_kind_of_difference() -> None:
    pattern = {
        "a": [1, {"b": "x"}],
        "c": {"$any": True},
        "d": {"$from": 1, "$to": 2},
        "e": {"$reference": True},
    }
    reference = {"text": "t", "request_id": "r"}
    good = {"a": [1, {"b": "x"}], "c": 0, "d": 2, "e": {"text": "t", "request_id": "other"}}
    assert list(_differences(pattern, good, reference)) == []
    for place, wrong in (
        (".a[0]", {"a": [True, {"b": "x"}]}),
        (".a[1].b", {"a": [1, {"b": "y"}]}),
        (".a", {"a": [1]}),
        (".a[1]", {"a": [1, {"b": "x", "more": 1}]}),
        (".c", {"c": None}),
        (".d", {"d": 3}),
        (".e.text", {"e": {"text": "u", "request_id": "r"}}),
        (".e", {"e": {"text": "t"}}),
    ):
        (difference,) = _differences(pattern, good | wrong, reference)
        assert difference.startswith(f"{place}: ")


def test_the_node_client_passes_its_own_tests(node: str) -> None:
    tests = sorted(str(path) for path in (NODE_CLIENT / "dist/test").glob("*.test.js"))
    assert len(tests) > 3
    _run([node, "--test", *tests])


def test_the_programs_of_the_node_readme_run(
    node: str, tmp_path: Path, daemon_for: Callable[[Json], Daemon]
) -> None:
    programs = re.findall(r"```js\n(.*?)```", (NODE_CLIENT / "README.md").read_text(), re.DOTALL)
    assert len(programs) == 2
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/specd-client").symlink_to(NODE_CLIENT)
    daemon = daemon_for(SCENARIOS["stream"]["daemon"])
    for program in programs:
        assert "localhost:50051" in program
        path = tmp_path / "program.mjs"
        path.write_text(program.replace("localhost:50051", daemon.address))
        assert _run([node, str(path)])


CONSUMER = """
import { Client, NotReady } from "specd-client";

const client = new Client(process.argv[2]);
let text = "";
const request = { text: "The ferry", maxNewTokens: 5, ignoreEos: true };
for await (const event of client.stream(request)) {
  if (event.type === "delta") text += event.text;
  if (event.type === "finished") console.log(event.usage.completionTokens, NotReady.name);
}
console.log(typeof text);
client.close();
"""


def test_the_packed_node_client_is_complete(
    node: str, tmp_path: Path, daemon_for: Callable[[Json], Daemon]
) -> None:
    npm = Path(node).with_name("npm")
    pack = [str(npm), "pack", "--ignore-scripts", "--json", "--pack-destination", str(tmp_path)]
    (packed,) = json.loads(_run(pack, cwd=NODE_CLIENT))
    names = {file["path"] for file in packed["files"]}
    assert {
        "LICENSE",
        "README.md",
        "dist/src/index.d.ts",
        "dist/proto/service_config.json",
    } <= names
    assert not any(name.startswith(("dist/test", "dist/conformance", "src")) for name in names)
    installed = tmp_path / "node_modules"
    installed.mkdir()
    with tarfile.open(tmp_path / packed["filename"]) as archive:
        archive.extractall(installed, filter="data")
    (installed / "package").rename(installed / "specd-client")
    # What the package manager would install besides; the package itself is only what was packed.
    (installed / "@grpc").symlink_to(NODE_CLIENT / "node_modules/@grpc")
    program = tmp_path / "program.mjs"
    program.write_text(CONSUMER)
    daemon = daemon_for(SCENARIOS["stream"]["daemon"])
    assert _run([node, str(program), daemon.address]).split() == ["5", "NotReady", "string"]
