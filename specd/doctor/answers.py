"""Whole answers: without drafts and alone, against every drafter, alone, together, short of pages.

They go the way of every request, from the engine's queue through drafting, padding, the runner and
the verifier to a mailbox; only the socket is left out. Knows requests and drafters.
Invariant: the answers that others are compared with were made without drafts, one after the other.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from drafters.contract import Drafter
from specd.device.boot import Booted
from specd.device.thread import DeviceThread
from specd.doctor.drafters import Knowing, oracle, ragged, wrong
from specd.doctor.finding import Finding
from specd.engine.drafting import Drafting
from specd.engine.events import Delta
from specd.engine.facts import ModelFacts
from specd.engine.generation import Generation, generation_of
from specd.engine.loop import Engine
from specd.engine.params import (
    GenerationParams,
    OutputParams,
    SamplingParams,
    SpeculationParams,
    StopParams,
)
from specd.engine.scheduler import Limits
from specd.engine.step_types import TokenLogprob
from specd.errors import RequestFailed
from specd.kv.pages import pages_for

# One token alone; answers that cross a page of 32 and a multiple of 128.
PROMPT_LENGTHS = (1, 24, 120)
NUM_NEW = 16
_STRIDE = 5
_MAX_DRAFT = 7
_TOP_LOGPROBS = 2


def samplings(seed: int, vocab_size: int) -> Mapping[str, SamplingParams]:
    """How tokens are chosen: from the argmax to all that changes a distribution."""
    bias = tuple((token, 1.0) for token in range(3, vocab_size, max(1, vocab_size // 5)))
    return {
        "greedy": SamplingParams(temperature=0, seed=seed),
        "temperature 1": SamplingParams(seed=seed),
        "temperature 0.8, top_p, min_p": SamplingParams(
            temperature=0.8, top_k=200, top_p=0.9, min_p=0.01, seed=seed
        ),
        "penalties and bias": SamplingParams(
            repetition_penalty=1.2,
            presence_penalty=0.3,
            frequency_penalty=0.2,
            logit_bias=bias,
            seed=seed,
        ),
    }


@dataclass(frozen=True, slots=True)
class Case:
    """A request. name: its id."""

    name: str
    prompt: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reader got. failure: the sentence with which the stream ended, None if it did well."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answers of one engine, by case, and its draft tokens: verified, and kept of these."""

    answers: Mapping[str, Answer]
    drafted: int
    kept: int


class Answers:
    """The answers that a warm model gives to some cases, and comparisons with them."""

    def __init__(
        self,
        device: DeviceThread,
        booted: Booted,
        cases: Sequence[Case],
        guests: Mapping[str, Drafter],
        rng: random.Random,
    ) -> None:
        """guests: drafters of the daemon's or of a user's, by their names."""
        self._device = device
        self._booted = booted
        self._cases = cases
        self._texts: dict[str, Sequence[int]] = {}
        vocab = booted.config.vocab_size
        self._drafters: dict[str, Drafter] = {
            "an oracle": Knowing(self._texts, oracle),
            "wrong tokens": Knowing(self._texts, wrong(vocab)),
            "random lengths": Knowing(self._texts, ragged(vocab, rng)),
            **guests,
        }
        self._wanted: Mapping[str, Answer] = {}

    async def compare(self) -> AsyncIterator[Finding]:
        """Every drafter and none, alone, together, and with too few pages for all.

        Raises:
            RequestFailed: the model answers nothing that could be compared.
        """
        self._wanted = (await self._one_by_one(self._cases, None)).answers
        for case in self._cases:
            if (failure := self._wanted[case.name].failure) is not None:
                raise RequestFailed(f"{case.name}: {failure}")
            self._texts[case.name] = (*case.prompt, *self._wanted[case.name].token_ids)
        for number, drafter in enumerate((None, *self._drafters)):
            name = drafter or "no drafts"
            # One at a time takes the longest: there each drafter gets a fifth of the cases.
            some = self._cases[number % _STRIDE :: _STRIDE]
            yield self._finding(f"{name}, alone", await self._one_by_one(some, drafter))
            together = await self._together(drafter, self._booted.num_pages)
            yield self._finding(f"{name}, {len(self._cases)} together", together)
            short = await self._together(drafter, self._few_pages())
            yield self._finding(f"{name}, short of pages", short)

    async def _one_by_one(self, cases: Sequence[Case], drafter: str | None) -> Outcome:
        async with self._engine(self._booted.num_pages) as engine:
            found = {case.name: await self._answer(engine, case, drafter) for case in cases}
        return _outcome(engine, found)

    async def _together(self, drafter: str | None, num_pages: int) -> Outcome:
        found: dict[str, Answer] = {}

        async def one(case: Case) -> None:
            found[case.name] = await self._answer(engine, case, drafter)

        async with self._engine(num_pages) as engine, anyio.create_task_group() as tasks:
            for case in self._cases:
                tasks.start_soon(one, case)
        return _outcome(engine, found)

    def _few_pages(self) -> int:
        """Enough for the prompts of all, and for the longest text; too few for all texts.

        So whoever outgrows its pages while all are running preempts another.
        """
        ends = [len(case.prompt) + NUM_NEW for case in self._cases]
        prompts = sum(pages_for(len(case.prompt) + 1) for case in self._cases)
        return min(self._booted.num_pages, max(prompts, pages_for(max(ends) + _MAX_DRAFT)))

    @asynccontextmanager
    async def _engine(self, num_pages: int) -> AsyncIterator[Engine]:
        """An engine of its own on the one device; idle and closed when the block is left."""
        drafting = Drafting(self._drafters)
        layout = self._device.layout
        rows = len(self._cases)
        engine = Engine(
            self._device,
            ModelFacts("doctor", self._booted.config.vocab_size, self._booted.fingerprint),
            drafting,
            num_pages=num_pages,
            limits=Limits(rows, layout.packed_buckets[-1]),
            max_waiting=rows,
        )
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(engine.run)
                yield engine
                await engine.wait_idle()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await drafting.aclose()

    async def _answer(self, engine: Engine, case: Case, drafter: str | None) -> Answer:
        generation = self._generation(case, drafter)
        engine.submit(generation)
        token_ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        failure = None
        try:
            async for event in generation.mailbox:
                if isinstance(event, Delta):
                    token_ids += event.token_ids
                    logprobs += event.logprobs
        except RequestFailed as error:
            failure = str(error)
        return Answer(tuple(token_ids), tuple(logprobs), failure)

    def _generation(self, case: Case, drafter: str | None) -> Generation:
        chain = () if drafter is None else (drafter,)
        params = GenerationParams(
            sampling=case.sampling,
            stop=StopParams(max_new_tokens=NUM_NEW, ignore_eos=True),
            output=OutputParams(token_ids=True, top_logprobs=_TOP_LOGPROBS),
            speculation=SpeculationParams(drafters=chain, max_draft_tokens=_MAX_DRAFT),
        )
        return generation_of(
            case.name,
            params,
            case.prompt,
            self._booted.tokenizer,
            context_left=self._booted.config.context_length - len(case.prompt),
            arrived_s=time.perf_counter(),
        )

    def _finding(self, name: str, outcome: Outcome) -> Finding:
        first, differences = None, 0
        for case in self._cases:
            answer, wanted = outcome.answers.get(case.name), self._wanted[case.name]
            if answer is not None and answer != wanted:
                first = first or _first(case, answer, wanted)
                differences += 1
        return Finding(
            "tokens", name, len(outcome.answers), "answers", differences, first,
            outcome.drafted, outcome.kept,
        )  # fmt: skip


def _outcome(engine: Engine, answers: Mapping[str, Answer]) -> Outcome:
    drafted = sum(engine.verified_by_drafter.values())
    return Outcome(answers, drafted, sum(engine.accepted_by_drafter.values()))


def _first(case: Case, found: Answer, wanted: Answer) -> str:
    if found.failure is not None:
        return f"{case.name}: {found.failure}"
    for place, (token, right) in enumerate(zip(found.token_ids, wanted.token_ids, strict=False)):
        if token != right:
            return f"{case.name}: token {place + 1} is {token} instead of {right}"
    if len(found.token_ids) != len(wanted.token_ids):
        return f"{case.name}: {len(found.token_ids)} tokens instead of {len(wanted.token_ids)}"
    return f"{case.name}: the same tokens with other log probabilities"
