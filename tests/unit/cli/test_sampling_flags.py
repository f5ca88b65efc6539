"""Which options of a request the flags of `specd generate` and `specd chat` become."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from specd.cli.answer import options_from
from specd.cli.request_flags import add_chat, add_generate
from specd.cli.sampling_flags import check_sampling_flags

CHOSEN = {
    "--max-new-tokens 9": {"max_new_tokens": 9},
    "--min-new-tokens 2": {"min_new_tokens": 2},
    "--temperature 0.5": {"temperature": 0.5},
    "--top-k 0": {"top_k": 0},
    "--top-p 0.25": {"top_p": 0.25},
    "--min-p 0": {"min_p": 0.0},
    "--repetition-penalty 1.5": {"repetition_penalty": 1.5},
    "--presence-penalty -1": {"presence_penalty": -1.0},
    "--frequency-penalty 2": {"frequency_penalty": 2.0},
    "--logit-bias 7=-1.5 --logit-bias 0=100": {"logit_bias": {7: -1.5, 0: 100.0}},
    "--seed 18446744073709551615": {"seed": 2**64 - 1},
    "--max-draft-tokens 0": {"max_draft_tokens": 0},
    "--stop a --stop b": {"stop_strings": ["a", "b"]},
    "--stop-token 0 --stop-token 511": {"stop_token_ids": [0, 511]},
    "--include-stop-string": {"include_stop_string": True},
    "--ignore-eos": {"ignore_eos": True},
    "--no-speculation": {"speculation": False},
    "--drafter ngram": {"drafters": ["ngram"]},
    "--json-schema {}": {"json_schema": "{}"},
    "--regex @a": {"regex": "@a"},
    "--grammar start:": {"grammar": "start:"},
    "--choice yes --choice no": {"choice": ["yes", "no"]},
}
TOLD = {
    "--num-sequences 3": {"num_sequences": 3},
    "--top-logprobs 0": {"top_logprobs": 0},
    "--prompt-logprobs 0": {"prompt_logprobs": 0},
    "--top-logprobs 1 --processed-logprobs": {"top_logprobs": 1, "logprob_basis": "PROCESSED"},
}


def options(*arguments: str) -> dict[str, Any]:
    """What is sent, token ids aside."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    add_generate(commands)
    add_chat(commands)
    parsed = parser.parse_args(arguments)
    check_sampling_flags(parser, parsed)
    found = {name: value for name, value in options_from(parsed).items() if value is not None}
    assert found.pop("return_token_ids") is True
    return found


@pytest.mark.parametrize("flags", [*CHOSEN, *TOLD])
def test_a_flag_of_generate_is_its_option_and_nothing_else(flags: str) -> None:
    assert options("generate", "x", *flags.split()) == (CHOSEN | TOLD)[flags]


@pytest.mark.parametrize("flags", CHOSEN)
def test_chat_takes_the_flags_that_choose_an_answer(flags: str) -> None:
    assert options("chat", *flags.split()) == CHOSEN[flags]


def test_no_flag_sends_nothing() -> None:
    assert options("generate", "x") == options("chat") == {}


@pytest.mark.parametrize("name", ["json_schema", "grammar"])
def test_a_text_may_come_from_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "structure"
    path.write_text("é\n", encoding="utf-8")
    flag = f"--{name.replace('_', '-')}"
    assert options("generate", "x", flag, f"@{path}") == {name: "é\n"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--logit-bias 5", "'5' is no token id, =, and number"),
        ("--logit-bias=-1=2", "'-1=2' is no token id, =, and number"),
        ("--logit-bias 5=much", "'5=much' is no token id, =, and number"),
        ("--logit-bias 5=1 --logit-bias 5=2", "--logit-bias names a token twice"),
        ("--processed-logprobs", "--processed-logprobs goes with --top-logprobs"),
        ("--processed-logprobs --prompt-logprobs 1", "goes with --top-logprobs"),
        ("--regex a --choice a", "argument --choice: not allowed with argument --regex"),
        ("--json-schema @/no/schema", "cannot read /no/schema: No such file"),
        ("--grammar @/bin/sh", "/bin/sh is not UTF-8"),
        ("--grammar @/\0", "cannot read /\0: embedded null byte"),
        ("--stop-token=-3", "'-3' is no whole number from 0 to 2^32 - 1"),
        ("--num-sequences many", "'many' is no whole number"),
    ],
)
def test_what_cannot_be_sent_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], flags: str, words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        options("generate", "x", *flags.split())
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("flags", TOLD)
def test_what_chat_has_no_place_for_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], flags: str
) -> None:
    with pytest.raises(SystemExit):
        options("chat", *flags.split())
    assert "unrecognized arguments" in capsys.readouterr().err
