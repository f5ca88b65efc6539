"""A conversation: what was said, and which question is open.

Knows nothing of calls and terminals. A question and its answer come into the history together, so
what the daemon is sent always alternates, whatever failed in between.

Invariant: `messages` ends with the open question; the history before it holds whole exchanges.
"""

from __future__ import annotations

from dataclasses import dataclass

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and its answer."""

    question: str
    answer: str


class Conversation:
    """system: a message before all others, None without."""

    def __init__(self, system: str | None) -> None:
        self.system = system
        self._history: list[Exchange] = []
        self._question: str | None = None
        self._kept = 0  # exchanges that the open question follows, if they are still there

    @property
    def num_exchanges(self) -> int:
        return len(self._history)

    @property
    def messages(self) -> list[Message]:
        """What the daemon is to answer now."""
        assert self._question is not None
        return [*self._past(self._kept), _message("user", self._question)]

    @property
    def history(self) -> list[Message]:
        """All that was said and answered."""
        return self._past(len(self._history))

    def ask(self, question: str) -> None:
        """Open a question behind everything said so far. One that got no answer is dropped."""
        self._question, self._kept = question, len(self._history)

    def answer(self, answer: str) -> None:
        """Close the open question with its answer."""
        assert self._question is not None
        self._history[self._kept :] = [Exchange(self._question, answer)]
        self._question = None

    def retry(self) -> bool:
        """Open the last question again; its old answer stays until a new one comes.

        Returns False where nothing was asked.
        """
        if self._question is None and self._history:
            self._question, self._kept = self._history[-1].question, len(self._history) - 1
        return self._question is not None

    def undo(self) -> bool:
        """Forget the last exchange. An unanswered question stays open for `retry`.

        Returns False where there is none.
        """
        if not self._history:
            return False
        self._history.pop()
        return True

    def reset(self) -> None:
        """Forget everything but the system message and an unanswered question."""
        self._history.clear()

    def _past(self, num_exchanges: int) -> list[Message]:
        found = [] if self.system is None else [_message("system", self.system)]
        for exchange in self._history[:num_exchanges]:
            found += [_message("user", exchange.question), _message("assistant", exchange.answer)]
        return found


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
