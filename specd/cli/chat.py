"""`specd chat`: a conversation with a running daemon.

Knows what lines mean: messages and commands. Ctrl-C stops the answer that is coming; what was said
until then is part of the conversation, as it stands on the screen. Ctrl-C at the prompt ends with
130, Ctrl-D with 0. A failed call changes nothing: the question stays open for /retry.

Invariant: the daemon is sent nothing that the user has not seen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specd_client import (
    CallCancelled,
    CallFailed,
    Client,
    DeadlineExceeded,
    FinishReason,
    InternalError,
    NotReady,
    Overloaded,
    ProtocolError,
    SpecdClientError,
)
from specd_client.v1 import model_pb2

from specd.cli.answer import ENDINGS, Answer, ask, document
from specd.cli.calling import credentials, sentence
from specd.cli.conversation import Conversation
from specd.cli.lines import Lines, NotText
from specd.cli.shown import Screen

_FAILED = 1
_INTERRUPTED = "interrupted"
# The same question may do better later.
_PASSING = (NotReady, Overloaded, DeadlineExceeded, CallCancelled, InternalError, ProtocolError)


def run(parsed: argparse.Namespace) -> int:
    """Talk until the lines end; returns the exit status."""
    screen = Screen(show_drafts=parsed.show_drafts)
    with asyncio.Runner() as runner:
        return Chat(parsed, runner, Lines(), screen).run()


@dataclass(frozen=True, slots=True)
class Command:
    """A line that begins with a slash. argument: its name for /help, empty if it takes none."""

    does: Callable[[str], None]
    help: str
    argument: str = ""


class Chat:
    """One conversation at a terminal or a pipe."""

    def __init__(
        self, parsed: argparse.Namespace, runner: asyncio.Runner, lines: Lines, screen: Screen
    ) -> None:
        self._parsed = parsed
        self._runner = runner
        self._lines = lines
        self._screen = screen
        self._conversation = Conversation(parsed.system)
        self._status = 0
        self._ended = False
        self._commands = {
            "/retry": Command(self._retry, "ask the last message again"),
            "/undo": Command(self._undo, "forget the last message and its answer"),
            "/reset": Command(self._reset, "forget the conversation; the system message stays"),
            "/system": Command(self._system, "set the system message; without TEXT none", "TEXT"),
            "/save": Command(self._save, "write the conversation to a new file, as JSON", "FILE"),
            "/help": Command(self._help, "show this"),
            "/exit": Command(self._exit, "end, as Ctrl-D does"),
        }

    def run(self) -> int:
        """Answer until the lines end. At a terminal the status is 0, whatever failed there."""
        if not self._greet():
            return _FAILED
        while not self._ended:
            try:
                line = self._lines.read()
            except NotText as error:
                self._fail(str(error))
                continue
            if line is None:
                break
            self._take(line)
            self._hint("")
        return 0 if self._lines.interactive else self._status

    def _greet(self) -> bool:
        """Make sure that somebody answers, and say who to a terminal."""
        try:
            info = self._runner.run(self._server_info())
        except SpecdClientError as error:
            self._fail(sentence(error, self._parsed))
            return False
        if self._lines.interactive:
            self._screen.note(f"{info.model} at {self._parsed.address}; /help lists the commands")
            self._screen.legend()
        return True

    async def _server_info(self) -> model_pb2.ServerInfo:
        own = credentials(self._parsed)
        async with Client(self._parsed.address, credentials=own, retries=False) as client:
            return await client.server_info()

    def _take(self, line: str) -> None:
        if not line.startswith("/"):
            if line.strip():
                self._conversation.ask(line)
                self._answer()
            return
        name, _, argument = line.rstrip().partition(" ")
        command = self._commands.get(name)
        if command is None:
            known = ", ".join(self._commands)
            self._fail(f"there is no command {name}, only {known}. To say it, begin with a space.")
        elif argument and not command.argument:
            self._fail(f"{name} takes nothing behind it")
        else:
            command.does(argument.strip())

    def _answer(self) -> None:
        """Have the open question answered."""
        answer = Answer()
        prompt = {"messages": self._conversation.messages}
        screen = None if self._parsed.json else self._screen
        try:
            self._runner.run(ask(self._parsed, prompt, answer, screen))
        except KeyboardInterrupt:
            if not self._lines.interactive:
                raise
            self._interrupted(answer)
        except SpecdClientError as error:
            self._refused(error, began=bool(answer.events))
        else:
            self._complete(answer)

    def _complete(self, answer: Answer) -> None:
        self._conversation.answer(answer.text)
        if self._parsed.json:
            print(json.dumps(document(answer)), flush=True)
        else:
            self._screen.end_line()
        self._tell_ending(answer.finish_reason)
        if self._parsed.show_drafts:
            self._screen.note(answer.figures)

    def _tell_ending(self, reason: FinishReason | None) -> None:
        if reason is FinishReason.ABORTED:
            self._status = _FAILED
            self._screen.error(ENDINGS[reason])
        elif reason is FinishReason.CONTEXT_LENGTH:
            self._screen.note(f"[{ENDINGS[reason]}]")
            self._hint("Make room with /undo or /reset.")
        elif reason in ENDINGS:
            self._hint(f"[{ENDINGS[reason]}]")

    def _interrupted(self, answer: Answer) -> None:
        if self._parsed.json:
            print(json.dumps({"error": _INTERRUPTED} | document(answer)), flush=True)
        if answer.text:
            self._conversation.answer(answer.text)
            self._hint(f"[{_INTERRUPTED}; what was said stays, /undo forgets it]")
        else:
            self._hint(f"[{_INTERRUPTED}; /retry asks again]")

    def _refused(self, error: SpecdClientError, *, began: bool) -> None:
        self._fail(sentence(error, self._parsed, began=began))
        if isinstance(error, _PASSING):
            self._hint("Nothing is lost: /retry asks again.")
        elif isinstance(error, CallFailed) and error.reason == "CONTEXT_LENGTH_EXCEEDED":
            room = "Make room with /undo or /reset, then /retry asks again."
            self._hint(room if self._conversation.num_exchanges else "The message is too long.")

    def _retry(self, _: str) -> None:
        if self._conversation.retry():
            self._answer()
        else:
            self._fail("nothing was asked yet")

    def _undo(self, _: str) -> None:
        if self._conversation.undo():
            self._hint(f"forgotten; exchanges left: {self._conversation.num_exchanges}")
        else:
            self._fail("there is nothing to undo")

    def _reset(self, _: str) -> None:
        self._conversation.reset()
        self._hint("a new conversation")

    def _system(self, text: str) -> None:
        self._conversation.system = text or None
        self._hint("the system message holds from the next answer on" if text else "none now")

    def _save(self, name: str) -> None:
        try:
            if not name:
                raise OSError(0, "it needs the name of a file", "/save")
            with Path(name).expanduser().open("x", encoding="utf-8") as file:
                json.dump(self._conversation.history, file, ensure_ascii=False, indent=1)
                file.write("\n")
        except OSError as error:
            self._fail(f"not saved: {error.filename}: {error.strerror}")
        except (ValueError, RuntimeError) as error:  # no name of a file; no such user
            self._fail(f"not saved: {error}")
        else:
            self._hint(f"saved: {name}")

    def _help(self, _: str) -> None:
        for name, command in self._commands.items():
            self._screen.note(f"{f'{name} {command.argument}':<14}{command.help}")
        self._screen.note("Ctrl-C stops an answer, Ctrl-D ends.")

    def _exit(self, _: str) -> None:
        self._ended = True

    def _fail(self, message: str) -> None:
        """Tell what went wrong, in the JSON stream too."""
        self._status = _FAILED
        self._screen.error(message)
        if self._parsed.json:
            print(json.dumps({"error": message}), flush=True)

    def _hint(self, message: str) -> None:
        """Tell a person how to go on; a script has the document and the status."""
        if self._lines.interactive:
            self._screen.note(message)
