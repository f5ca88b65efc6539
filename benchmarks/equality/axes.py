"""What is varied: one table per axis, one line per value. Add yours here; nothing else is needed.

A drafter: what the daemon loads (`load`, as behind `--drafter`), what a request asks for
(`options`), and the count that shows that it did what its name says (`sign`). A kernel or a weight
format: flags of the daemon. A way of sampling: options of a request. A cache: the sign of
"prefix". Company: a function in `company.py`.

Invariant: a value changes nothing that another axis decides, so every combination is a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.demo import CHAT, CODE
from benchmarks.equality import company
from benchmarks.equality.company import Company
from benchmarks.speculation import COPY, JSON

Sign = Literal["drafted", "accepted", "late", "faults", "recomputed", "cached"]
_OURS = "benchmarks.equality.drafters"
_PATIENT = {"draft_budget_s": 0.25}


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """load: None for one that needs no loading. sign: what cannot be 0 over a whole run."""

    load: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    sign: Sign | None = None

    def request(self) -> dict[str, Any]:
        """The options of a request that uses it."""
        named = {} if self.load is None else {"drafters": [self.load]}
        return named | dict(self.options)


def _ours(name: str, sign: Sign | None, **options: Any) -> DrafterKind:
    return DrafterKind(f"{_OURS}:{name}", options, sign)


@dataclass(frozen=True, slots=True)
class Cut:
    """A prompt of so many tokens, the first ones of one text: each is a prefix of all longer."""

    length: int


_SCRIPTS = "Η θάλασσα είναι ήρεμη. 海は静かです。 البحر هادئ. समुद्र शांत है। 바다는 고요하"
_EMOJI = "Weather: 🌤️ 18°, wind 🌬️. The crew 👩‍🔧👨‍🍳👩‍👩‍👧 sails 🚢🌊 with 🏴‍☠️ 🙂🙂"
# A form of a prompt is an option of the client, `text` or `messages`.
PROMPTS: Mapping[str, Mapping[str, Any] | Cut] = {
    "chat": CHAT,
    "code": CODE,
    "copy": COPY,
    "json": JSON,
    "scripts": {"text": _SCRIPTS},
    "emoji": {"text": _EMOJI},
    "one": Cut(1),
    "31": Cut(31),
    "32": Cut(32),
    "33": Cut(33),
    "127": Cut(127),
    "128": Cut(128),
    "129": Cut(129),
}

DRAFTERS: Mapping[str, DrafterKind] = {
    "off": DrafterKind(options={"speculation": False}),
    "default": DrafterKind(),
    "ngram": DrafterKind("ngram", sign="drafted"),
    "grammar": DrafterKind(options={"drafters": ["grammar"]}, sign="accepted"),
    "oracle": _ours("Oracle", "accepted"),
    "one": _ours("Oracle", "accepted", max_draft_tokens=1),
    "long": _ours("Long", "accepted"),
    "wrong": _ours("Wrong", "drafted"),
    "random": _ours("Ragged", "accepted", **_PATIENT),
    "crashing": _ours("Crashing", "faults"),
    "lying": _ours("Lying", "faults"),
    "late": _ours("Late", "late", draft_budget_s=0.002),
    "blocking": _ours("Blocking", "late", draft_budget_s=0.005),
    "nothing": _ours("Nothing", None),
}

COMPANIES: Mapping[str, Company] = {
    "alone": Company(1, company.alone),
    "neighbours": Company(4, company.together),
    "crowd": Company(17, company.crowd),
    "preempted": Company(12, company.together, is_tight=True, sign="recomputed"),
    "prefix": Company(4, company.again),
}

_BIAS = {10: 1.0, 40: -2.0, 97: 1.5, 198: -1.0, 220: 0.5}
_SCHEMA = {
    "type": "object",
    "properties": {"calm": {"type": "boolean"}, "wind": {"enum": ["north", "south"]}},
    "required": ["calm", "wind"],
    "additionalProperties": False,
}

SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0, "ignore_eos": True, "logprob_basis": "RAW"},
    "nucleus": {"temperature": 0.8, "top_p": 0.9, "logprob_basis": "PROCESSED"},
    "truncated": {
        **{"temperature": 1.2, "top_k": 20, "min_p": 0.02, "stop_strings": ["\n\n", "e s"]},
        **{"prompt_logprobs": 2, "logprob_basis": "RAW"},
    },
    "penalties": {
        **{"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.4},
        **{"frequency_penalty": 0.3, "logit_bias": _BIAS, "min_new_tokens": 8},
        **{"logprob_basis": "PROCESSED"},
    },
    # What was said is said again, so that whoever drafts from the text is often right.
    "greedy-penalties": {
        **{"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": -2.0},
        **{"frequency_penalty": -1.5, "logit_bias": _BIAS, "logprob_basis": "PROCESSED"},
    },
    "sequences": {"temperature": 0.9, "num_sequences": 3, "logprob_basis": "RAW"},
    "schema": {
        **{"temperature": 0.7, "json_schema": _SCHEMA},
        **{"logprob_basis": "PROCESSED"},
    },
}
TOP_LOGPROBS = 2

# Flags of the daemon. The first of each pair decides what is computed, the second by what.
ARITHMETICS: Mapping[str, tuple[str, ...]] = {
    "fp32": ("--weights", "fp32"),
    "bf16": ("--weights", "bf16"),
    "auto": ("--weights", "auto"),
    "auto-avx2": ("--weights", "auto", "--kernels", "avx2"),
    "fp32-torch": ("--weights", "fp32", "--kernels", "torch"),
    "bf16-torch": ("--weights", "bf16", "--kernels", "torch"),
    "auto-torch": ("--weights", "auto", "--kernels", "torch"),
}
