"""Text on the wire: whole characters, nothing lost, stop strings of any script.

A scripted model answers what stands in SCRIPTS, in tokens that cut characters apart, and an oracle
drafts it, so that a delta is a burst of exactly as many tokens as a test asks for.
"""

from __future__ import annotations

import asyncio
import json
import unicodedata
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client, Delta, Finished, FinishReason
from specd_client.v1 import generation_pb2 as pb

from benchmarks.toy_gguf import IM_END
from tests.e2e.calls import PATIENCE_S, answer, detokenized, stubs
from tests.e2e.drafters_under_test import RECORDING, spec
from tests.support.daemon import Daemon, daemon_process
from tests.support.scripted_model import Piece, Script, build_scripted_model, cut_bytes

REPLACEMENT = "\ufffd"
FAMILY = "👩\u200d👩\u200d👧"
BURSTS = range(1, 9)
LONG_TEXTS = {
    "korean": "안녕하세요 세계, 오늘은 날씨가 좋네요. ",
    "thai": "สวัสดีชาวโลก วันนี้อากาศดีมาก ",
    "hindi": "नमस्ते दुनिया, आज मौसम अच्छा है। ",
}
NUM_CHARACTERS = 1000
SHORT_TEXTS = {
    "emoji": f"a🙂b🙃{FAMILY}🇰🇷👍🏽.",
    "combining": unicodedata.normalize("NFD", "ďábel žluťoučký é") + "ďé",
    "chinese": "你好，世界。𠀀𪜶",
}
CONTROL_FIRST: list[Piece] = ["<|mark|>", b"word", b" ", "<|mark|>", b" word", "<|mark|>", b"."]
HELLO: list[Piece] = [bytes([letter]) for letter in b"hello, hello"]
STOPS = {"accent": "é", "world": "世界", "family": FAMILY}


def _script(text: str, longest: int = 4) -> list[Piece]:
    return list(cut_bytes(text, seed=len(text), longest=longest))


SCRIPTS: dict[str, list[Piece]] = {
    **{name: _script((text * 99)[:NUM_CHARACTERS]) for name, text in LONG_TEXTS.items()},
    **{name: _script(text, longest=1) for name, text in SHORT_TEXTS.items()},
    "control": CONTROL_FIRST,
    "hello": HELLO,
    "tail": [b"\x99", b"\x82", b"ok"],  # of an emoji
    **{name: _script(f"une {stop}!{stop} fin", longest=1) for name, stop in STOPS.items()},
}


@dataclass(frozen=True)
class Scripted:
    """A daemon with the scripted model, and its scripts by name."""

    daemon: Daemon
    scripts: dict[str, Script]

    def text(self, name: str) -> str:
        """What a script says, its control tokens left out."""
        return b"".join(piece for piece in SCRIPTS[name] if isinstance(piece, bytes)).decode()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Client(self.daemon.address) as client:
            yield client


@pytest.fixture(scope="module")
def scripted(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    path = models / "scripted.gguf"
    scripts = dict(zip(SCRIPTS, build_scripted_model(path, list(SCRIPTS.values())), strict=True))
    recording = tmp_path_factory.mktemp("scripted") / "recording.json"
    texts = [[script.start, *script.answer] for script in scripts.values()]
    recording.write_text(json.dumps(texts))
    flags = ("--drafter", spec("oracle"), "--max-rows", "32")
    env, here = {RECORDING: str(recording)}, Path(__file__).parent
    with daemon_process(path, *flags, env=env, cwd=here) as daemon:
        yield Scripted(daemon, scripts)


async def _deltas(client: Client, script: Script, burst: int, **options: Any) -> list[Delta]:
    """The deltas of a whole answer, of `burst` tokens each but for the first and the last."""
    options = {"temperature": 0, "max_draft_tokens": burst - 1, "return_token_ids": True} | options
    stream = client.stream(token_ids=[script.start], timeout_s=PATIENCE_S, **options)
    events = [event async for event in stream]
    assert isinstance(events[-1], Finished)
    return [event for event in events if isinstance(event, Delta)]


def _text(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def _ids(deltas: Sequence[Delta]) -> tuple[int, ...]:
    return tuple(token for delta in deltas for token in delta.token_ids)


def _check_shown(deltas: Sequence[Delta], text_after: Sequence[str]) -> None:
    """Each delta ends with the text that its tokens allow; deltas join where the reader is slow."""
    for number in range(1, len(deltas) + 1):
        assert _text(deltas[:number]) == text_after[len(_ids(deltas[:number]))]
    assert len(_ids(deltas)) == len(text_after) - 1


@pytest.mark.parametrize("name", LONG_TEXTS)
@pytest.mark.asyncio
async def test_a_thousand_characters_lose_none_in_bursts_of_any_length(
    scripted: Scripted, name: str
) -> None:
    script, text = scripted.scripts[name], scripted.text(name)
    assert len(text) == NUM_CHARACTERS
    async with scripted.client() as client:
        assert await detokenized(client, script.answer) == text
        runs = await asyncio.gather(*(_deltas(client, script, burst) for burst in BURSTS))
    for burst, deltas in zip(BURSTS, runs, strict=True):
        assert _ids(deltas) == script.answer
        assert _text(deltas) == text
        assert all(len(delta.token_ids) >= burst for delta in deltas[1:-1]), "it was accepted"


@pytest.mark.parametrize("name", SHORT_TEXTS)
@pytest.mark.parametrize("burst", [1, 3, 8])
@pytest.mark.asyncio
async def test_a_character_of_several_tokens_appears_whole_and_no_replacement_with_it(
    scripted: Scripted, name: str, burst: int
) -> None:
    async with scripted.client() as client:
        deltas = await _deltas(client, scripted.scripts[name], burst)
    assert _text(deltas) == scripted.text(name)
    assert not any(REPLACEMENT in delta.text for delta in deltas)


@pytest.mark.asyncio
async def test_eight_streams_at_once_say_what_each_says_alone(scripted: Scripted) -> None:
    names = [*SHORT_TEXTS, *STOPS, "control", "hello"]
    assert len(names) == 8
    async with scripted.client() as client:
        alone = [await _deltas(client, scripted.scripts[name], 3) for name in names]
        together = await asyncio.gather(
            *(_deltas(client, scripted.scripts[name], 3) for name in names)
        )
    for name, one, other in zip(names, alone, together, strict=True):
        assert _text(one) == _text(other) == scripted.text(name)
        assert _ids(one) == _ids(other)


@pytest.mark.parametrize("burst", [1, 2, 8])
@pytest.mark.asyncio
async def test_control_tokens_are_shown_as_they_are_and_no_space_comes_with_them(
    scripted: Scripted, burst: int
) -> None:
    script = scripted.scripts["control"]
    async with scripted.client() as client:
        deltas = await _deltas(client, script, burst, skip_special_tokens=False)
        whole = await detokenized(client, script.answer, skip_special_tokens=False)
    written = "".join(p if isinstance(p, str) else p.decode() for p in CONTROL_FIRST)
    # The end token is no part of the text whatever was asked for.
    assert _text(deltas) == written
    assert whole == written + IM_END


@pytest.mark.asyncio
async def test_a_long_stop_string_holds_nothing_back_that_cannot_become_it(
    scripted: Scripted,
) -> None:
    async with scripted.client() as client:
        stops = ["x" * 200, "hello" + "?" * 195]
        deltas = await _deltas(client, scripted.scripts["hello"], 1, stop_strings=stops)
    # "hello" may be the second string's begin until the comma is there; the second is until the
    # answer ends.
    held, released = ["", "", "", "", "", "hello,"], "hello, "
    _check_shown(deltas, ["", *held, released, *[released] * 5, "hello, hello"])


@pytest.mark.asyncio
async def test_at_the_length_limit_the_text_that_was_held_back_is_shown(
    scripted: Scripted,
) -> None:
    async with scripted.client() as client:
        options: dict[str, Any] = {"stop_strings": ["hello, hello, hello"], "max_new_tokens": 9}
        deltas = await _deltas(client, scripted.scripts["hello"], 4, **options)
    assert _text(deltas) == "hello, he"


@pytest.mark.parametrize("name", STOPS)
@pytest.mark.parametrize("burst", [1, 2, 8])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.asyncio
async def test_a_stop_string_of_characters_that_tokens_cut_apart_stops_cleanly(
    scripted: Scripted, name: str, burst: int, include: bool
) -> None:
    script, stop = scripted.scripts[name], STOPS[name]
    options = {"stop_strings": [stop], "include_stop_string": include}
    async with scripted.client() as client:
        deltas = await _deltas(client, script, burst, **options)
        run = await answer(client, [script.start], temperature=0, **options)
    text = "une " + (stop if include else "")
    assert _text(deltas) == run.text == text
    # The match is complete with the last byte of the first stop string.
    assert _ids(deltas) == run.token_ids == script.answer[: len(f"une {stop}".encode())]
    assert (run.finish_reason, run.matched_stop_string) == (FinishReason.STOP_STRING, stop)


@pytest.mark.parametrize("num_bytes", [1, 2, 3, 4])
@pytest.mark.asyncio
async def test_an_answer_that_ends_inside_a_character_is_a_sound_message(
    scripted: Scripted, num_bytes: int
) -> None:
    script = scripted.scripts["emoji"]  # "a", then four tokens of one byte
    tail = "🙂" if num_bytes == 4 else REPLACEMENT
    stop = {"max_new_tokens": 1 + num_bytes}
    async with scripted.client() as client, stubs(scripted.daemon.address) as calls:
        deltas = await _deltas(client, script, 1, **stop)
        request = pb.GenerateRequest(
            input={"tokens": {"ids": [script.start]}}, sampling={"temperature": 0}, stop=stop
        )
        whole = await calls.generation.Generate(request)
    _check_shown(deltas, ["", *["a"] * num_bytes, "a" + tail])
    assert whole.sequences[0].text == "a" + tail
    assert len(_ids(deltas)) == 1 + num_bytes


@pytest.mark.asyncio
async def test_an_answer_does_not_complete_a_character_that_the_prompt_began(
    scripted: Scripted,
) -> None:
    script = scripted.scripts["tail"]
    async with scripted.client() as client:
        prompt = [*b"Smile: ", 0xF0, 0x9F, script.start]  # toy ids below 256 are bytes
        run = await answer(client, prompt, temperature=0)
    assert run.token_ids == script.answer
    assert run.text == f"{REPLACEMENT}{REPLACEMENT}ok"
