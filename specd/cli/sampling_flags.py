"""Flags of what an answer is: how its tokens are chosen, when it ends, its form, what it tells.

Knows argparse and which flag is which option of a request; imports no client. Leaves defaults and
limits to the daemon: a flag that is not given is not sent.
"""

from __future__ import annotations

import argparse
from typing import Any

from specd.cli.flag_types import FILE_SIGN, bias, text, text_or_file, uint32, uint64

# What `add_output_flags` declares; commands without it ask for none of it.
NO_OUTPUT_FLAGS = {
    "num_sequences": None,
    "top_logprobs": None,
    "prompt_logprobs": None,
    "processed_logprobs": False,
}


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Declare how tokens are chosen, when an answer ends, and its form."""
    for flag, kind, meaning in _NUMBERS:
        parser.add_argument(flag, type=kind, metavar="N", help=meaning)
    parser.add_argument(
        "--logit-bias",
        type=bias,
        action="append",
        metavar="ID=N",
        help="add N to the logit of a token; repeatable",
    )
    parser.add_argument("--stop", type=text, action="append", help="a stop string; repeatable")
    parser.add_argument(
        "--stop-token", type=uint32, action="append", metavar="ID", help="a token; repeatable"
    )
    parser.add_argument(
        "--include-stop-string", action="store_true", help="show the stop string that was met"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on past the end token")
    _add_structure_flags(parser)


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """Declare what is told besides one text."""
    for flag, meaning in _OUTPUTS:
        parser.add_argument(flag, type=uint32, metavar="N", help=meaning)
    parser.add_argument(
        "--processed-logprobs",
        action="store_true",
        help="those of what the tokens were drawn from, not of the model's own logits",
    )


def check_sampling_flags(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """End with a usage error where flags do not fit together."""
    ids = [token_id for token_id, _ in parsed.logit_bias or ()]
    if len(set(ids)) < len(ids):
        parser.error("--logit-bias names a token twice")
    if parsed.processed_logprobs and parsed.top_logprobs is None:
        parser.error("--processed-logprobs goes with --top-logprobs")


def sampling_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """Options of a request by their names in the client; None where a flag is not given."""
    same = {name: getattr(parsed, name) for name in _SAME}
    return same | {
        "logit_bias": None if parsed.logit_bias is None else dict(parsed.logit_bias),
        "stop_strings": parsed.stop,
        "stop_token_ids": parsed.stop_token,
        "include_stop_string": parsed.include_stop_string or None,
        "ignore_eos": parsed.ignore_eos or None,
        "logprob_basis": "PROCESSED" if parsed.processed_logprobs else None,
    }


def _add_structure_flags(parser: argparse.ArgumentParser) -> None:
    forms = parser.add_mutually_exclusive_group()
    for flag, kind, meaning in _FORMS:
        forms.add_argument(flag, type=kind, metavar="TEXT", help=meaning)
    forms.add_argument(
        "--choice", type=text, action="append", help="one of several answers; repeatable"
    )


_NUMBERS = (
    ("--max-new-tokens", uint32, "tokens of an answer at most"),
    ("--min-new-tokens", uint32, "tokens before which the answer cannot end"),
    ("--temperature", float, "0 takes the likeliest token"),
    ("--top-k", uint32, "choose from the N likeliest tokens"),
    ("--top-p", float, "choose from the likeliest tokens that have this probability together"),
    ("--min-p", float, "choose from tokens with this fraction of the likeliest one's probability"),
    ("--repetition-penalty", float, "above 1 avoids what prompt and answer hold"),
    ("--presence-penalty", float, "above 0 avoids what the answer holds"),
    ("--frequency-penalty", float, "above 0 avoids what the answer holds often"),
    ("--seed", uint64, "the same one gives the same answer"),
    ("--max-draft-tokens", uint32, "draft tokens in a step at most"),
)
_OUTPUTS = (
    ("--num-sequences", "so many answers, each with a seed of its own"),
    ("--top-logprobs", "tell log probabilities, with the N likeliest tokens beside each"),
    ("--prompt-logprobs", "the same of the prompt"),
)
_FILES = f"; {FILE_SIGN}FILE reads a file"
_FORMS = (
    ("--json-schema", text_or_file, f"the answer is JSON of this schema{_FILES}"),
    ("--regex", text, "the answer matches this regular expression"),
    ("--grammar", text_or_file, f"the answer follows this Lark grammar{_FILES}"),
)
_SAME = tuple(
    flag.removeprefix("--").replace("-", "_")
    for flag, *_ in (*_NUMBERS, *_OUTPUTS, *_FORMS, ("--choice",))
)
