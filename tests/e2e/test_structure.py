"""Answers in a form, from outside: always in it, and the same tokens whatever drafts them.

The toy's weights are random, so nothing but the structure keeps its answers in any form.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client, Completion, FinishReason

from tests.e2e.calls import PROMPT, PROMPTS, answer, check_sums, drafter_stats, quiet, wait_for
from tests.e2e.drafters_under_test import RECORDING, spec
from tests.support.daemon import Daemon, daemon_process, environment

PERSON = json.dumps({
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "blue 🙂", None]}, "maxItems": 2},
        "place": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["name", "age", "tags", "place"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"open": {"type": "boolean"}},
                        "required": ["open"], "additionalProperties": False}},
})  # fmt: skip
NUMBER = r"(\+|-)?[0-9]{1,3}(,[0-9]{3}){0,2} (km|mi)"
CHOICES = ("yes", "yes, indeed", "no", 'say "maybe"\nor 🙂')
SUM = (
    'start: term (" + " term){0,3} " = " NUMBER\nterm: NUMBER | "(" term ")"\nNUMBER: /[0-9]{1,2}/'
)
STRUCTURES: dict[str, dict[str, Any]] = {
    "schema": {"json_schema": PERSON},
    "regex": {"regex": NUMBER},
    "choice": {"choice": CHOICES},
    "lark": {"grammar": SUM},
}
SAMPLED = {"temperature": 1.0, "max_new_tokens": 120}
KINDS = ("oracle", "greedy", "wrong", "ragged", "grammatical", "ending", "foreign")
SEEDS = (3, 4, 5)
# With a prompt of its own nothing else is recorded, and the oracle cannot take it for another.
ALONE = 6


def is_person(text: str) -> bool:
    """Whether a text is JSON of the schema, by hand."""
    value = json.loads(text)
    assert list(value) == ["name", "age", "tags", "place"]
    name, age, tags, place = value.values()
    return (
        isinstance(name, str) and 1 <= len(name) <= 6
        and type(age) is int and 0 <= age <= 150
        and isinstance(tags, list) and len(tags) <= 2
        and all(tag in ("red", "blue 🙂", None) for tag in tags)
        and (place is None or (list(place) == ["open"] and type(place["open"]) is bool))
    )  # fmt: skip


def has_form(name: str, text: str) -> bool:
    match name:
        case "schema":
            return is_person(text)
        case "regex":
            return re.fullmatch(NUMBER, text) is not None
        case "choice":
            return text in CHOICES
    return re.fullmatch(r"\(*\d{1,2}\)*( \+ \(*\d{1,2}\)*){0,3} = \d{1,2}", text) is not None


@dataclass
class Forms:
    """A daemon with many drafters, and plain answers by (structure, seed)."""

    daemon: Daemon
    recording: Path
    plain: dict[tuple[str, int], Completion] = field(default_factory=dict)

    async def record(self, client: Client) -> None:
        """Make the plain runs, one at a time, and the file for the drafters; once."""
        if self.plain:
            return
        texts = []
        for name in STRUCTURES:
            for seed in (*SEEDS, ALONE):
                run = await ask(client, name, seed, speculation=False)
                assert run.speculation.total.draft_tokens == 0
                self.plain[name, seed] = run
                texts.append([*prompt_of(name, seed), *run.token_ids])
        self.recording.write_text(json.dumps(texts))


def prompt_of(name: str, seed: int) -> list[int]:
    return [seed if seed == ALONE else 65, list(STRUCTURES).index(name)]


async def ask(client: Client, name: str, seed: int, **options: Any) -> Completion:
    """An answer in the structure of this name."""
    chosen = STRUCTURES[name] | SAMPLED | options
    return await answer(client, prompt_of(name, seed), seed=seed, **chosen)


@contextmanager
def serving(toy: Path, folder: Path, *flags: str) -> Iterator[Forms]:
    recording = folder / "recording.json"
    drafters = [part for kind in KINDS for part in ("--drafter", spec(kind))]
    with daemon_process(
        toy,
        *("--drafter", "ngram", *drafters, *flags),
        env={RECORDING: str(recording)},
        cwd=Path(__file__).parent,
        with_failing_drafters=True,
    ) as daemon:
        yield Forms(daemon, recording)


@pytest.fixture(scope="module")
def forms(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forms]:
    with serving(toy, tmp_path_factory.mktemp("forms")) as forms:
        yield forms


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.asyncio
async def test_every_answer_has_its_form_and_ends_by_itself(forms: Forms, name: str) -> None:
    async with Client(forms.daemon.address) as client:
        runs = await asyncio.gather(
            *(
                answer(client, PROMPT, seed=seed, **STRUCTURES[name], **SAMPLED)
                for seed in range(25)
            )
        )
        for run in runs:
            assert has_form(name, run.text), run.text
            assert run.finish_reason is FinishReason.EOS_TOKEN
            check_sums(run)
        assert len({run.text for run in runs}) > (1 if name == "choice" else 15)
        await quiet(client)


@pytest.mark.parametrize("crowd", [0, 5])
@pytest.mark.parametrize("kind", [None, "default", "grammar", "ngram", *KINDS])
@pytest.mark.asyncio
async def test_no_drafter_and_no_neighbour_changes_a_structured_token(
    forms: Forms, kind: str | None, crowd: int
) -> None:
    """Ragged drafts beside free text (j01), drafts past the end of the form (j03), legal drafts
    that are wrong (j05), n-grams under every kind of structure (j07)."""
    options: dict[str, Any] = {"speculation": False}
    if kind in KINDS:
        options = {"drafters": [spec(kind)], "draft_budget_s": 0.1}
    elif kind is not None:
        options = {} if kind == "default" else {"drafters": [kind]}
    async with Client(forms.daemon.address) as client:
        await forms.record(client)
        free = [
            answer(client, PROMPTS[place % len(PROMPTS)], seed=place, max_new_tokens=40)
            for place in range(crowd)
        ]
        structured = [ask(client, name, seed, **options) for name, seed in forms.plain]
        runs = (await asyncio.gather(*free, *structured))[crowd:]
        for run, plain in zip(runs, forms.plain.values(), strict=True):
            assert run.token_ids == plain.token_ids
            assert (run.text, run.finish_reason) == (plain.text, plain.finish_reason)
            check_sums(run)
        tallies = [run.speculation.total for run in runs]
        drafted = sum(tally.draft_tokens for tally in tallies)
        accepted = sum(tally.accepted_draft_tokens for tally in tallies)
        match kind:
            case "oracle" | "greedy" | "grammar" | "default":
                assert accepted > drafted / 2 > 0
            case "grammatical":
                assert drafted > accepted
            case "ending" | "foreign" | None:
                assert drafted == 0, "what no answer holds is not even tried"


@pytest.mark.asyncio
async def test_a_form_may_end_in_the_middle_of_a_draft(forms: Forms) -> None:
    """The oracle knows the answer, its end, and goes on behind it: 7 tokens each time."""
    async with Client(forms.daemon.address) as client:
        await forms.record(client)
        for name in STRUCTURES:
            plain = forms.plain[name, ALONE]
            run = await ask(client, name, ALONE, max_draft_tokens=7, drafters=[spec("greedy")])
            assert run.token_ids == plain.token_ids
            assert run.finish_reason is FinishReason.EOS_TOKEN
            total = run.speculation.total
            assert total.accepted_draft_tokens == total.draft_tokens, "none of them was an end"
            # One token, then eight a step; the end comes as the target's own.
            assert total.verify_steps == 1 + -(-(len(plain.token_ids) - 1) // 8)


@pytest.mark.asyncio
async def test_forced_tokens_are_drafted_for_free(forms: Forms) -> None:
    async with Client(forms.daemon.address) as client:
        run = await answer(client, PROMPT, seed=1, **STRUCTURES["schema"], **SAMPLED)
        grammar = run.speculation.by_drafter["grammar"]
        assert grammar.draft_tokens > 10
        assert grammar.accepted_draft_tokens >= 0.9 * grammar.draft_tokens
        assert grammar.late == grammar.faults == 0
        stats = await drafter_stats(client, "grammar")
        assert stats.accepted >= grammar.accepted_draft_tokens
        free = await answer(client, PROMPT, seed=1, max_new_tokens=20, drafters=["grammar"])
        assert free.speculation.total.draft_tokens == 0


@pytest.mark.asyncio
async def test_what_a_caller_asks_of_sampling_comes_before_the_form(forms: Forms) -> None:
    async with Client(forms.daemon.address) as client:
        wish: dict[str, Any] = {"temperature": 0, "max_new_tokens": 60}
        letters = {"logit_bias": {ord("z"): 100.0, ord("n"): 50.0}, "presence_penalty": 2.0}
        run = await answer(client, PROMPT, **wish, **letters, choice=["yes", "no"])
        assert run.text == "no", "z is no choice, and n is liked better than y"
        run = await answer(client, PROMPT, **wish, logit_bias={511: -100.0}, regex="[0-9]{2}")
        assert (run.finish_reason, len(run.text)) == (FinishReason.EOS_TOKEN, 2)


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ({"max_new_tokens": 3}, FinishReason.MAX_TOKENS),
        ({"stop_strings": ['"name']}, FinishReason.STOP_STRING),
        ({"stop_token_ids": [ord('"')] + list(range(256, 509))}, FinishReason.STOP_TOKEN),
    ],
)
@pytest.mark.asyncio
async def test_a_stop_may_come_before_the_form_is_complete(
    forms: Forms, stop: dict[str, Any], reason: FinishReason
) -> None:
    async with Client(forms.daemon.address) as client:
        options = {"temperature": 1.0, "max_new_tokens": 120, "json_schema": PERSON} | stop
        drafted = await answer(client, PROMPT, seed=1, **options)
        plain = await answer(client, PROMPT, seed=1, speculation=False, **options)
        assert drafted.finish_reason is reason
        assert drafted.token_ids == plain.token_ids
        await quiet(client)


@pytest.mark.asyncio
async def test_each_of_several_sequences_has_the_form_and_is_a_request_of_its_own(
    forms: Forms,
) -> None:
    async with Client(forms.daemon.address) as client:
        texts: dict[int, str] = {0: "", 1: "", 2: ""}
        seeds: tuple[int, ...] = ()
        options: dict[str, Any] = {"json_schema": PERSON, **SAMPLED}
        async for event in client.stream(PROMPT, num_sequences=3, seed=8, **options):
            seeds = getattr(event, "sequence_seeds", None) or seeds
            if getattr(event, "text", ""):
                texts[event.sequence_index] += event.text  # type: ignore[union-attr]
        assert len(set(texts.values())) == 3
        for index, text in texts.items():
            assert is_person(text)
            alone = await answer(client, PROMPT, seed=seeds[index], **options)
            assert alone.text == text
        await quiet(client)


@pytest.mark.asyncio
async def test_cancelled_streams_leave_nothing_behind(forms: Forms) -> None:
    endless = json.dumps({"type": "array", "items": {"type": "integer"}, "minItems": 90})
    async with Client(forms.daemon.address) as client:
        for wave in range(3):
            streams = [
                asyncio.create_task(
                    answer(client, PROMPT, request_id=f"{n}", seed=n, json_schema=endless)
                )
                for n in range(12)
            ]
            if wave:
                await wait_for(client, running=12)
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
            await quiet(client)
        run = await answer(client, PROMPT, request_id="1", **STRUCTURES["choice"])
        assert run.text in CHOICES


@pytest.mark.asyncio
async def test_without_drafters_a_structure_has_none_either(toy: Path) -> None:
    with daemon_process(toy, "--drafter", "none") as daemon:
        async with Client(daemon.address) as client:
            assert list((await client.model()).drafters) == []
            run = await answer(client, PROMPT, json_schema=PERSON, **SAMPLED)
            assert is_person(run.text)
            assert run.speculation.total.draft_tokens == 0


def test_the_program_of_the_page_runs(daemon: Daemon) -> None:
    page = Path(__file__).parents[2] / "docs" / "structured-output.md"
    [program] = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    address = "127.0.0.1:50051"
    assert address in program
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace(address, daemon.address)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    ticket, raining, number, total = done.stdout.splitlines()
    assert ticket.startswith("{'harbour': '")
    assert raining in {"yes", "no"}
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", number)
    assert re.fullmatch("-?[0-9]{1,6}", total)
