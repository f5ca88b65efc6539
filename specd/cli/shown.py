"""How an answer looks: its text on stdout, everything about it on stderr.

Knows terminals and colours; nothing of calls. Colours are for terminals: a pipe, a file and
NO_COLOR get the text alone.

Invariant: stdout, stripped of colours, is the text that came, byte for byte.
"""

from __future__ import annotations

import io
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text
from specd_client.events import SpeculationStats

from specd.cli.origins import Piece

DRAFT = Style(color="green")
NOTE = Style(dim=True)


class Screen:
    """Where one command shows its answers. show_drafts: whether colours are wanted."""

    def __init__(self, *, show_drafts: bool) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show every character
            sys.stdout.reconfigure(errors="replace")
        self._notes = Console(stderr=True, highlight=False, soft_wrap=True)
        self._at_terminal = _is_terminal()
        self._mid_line = False
        self.paints = show_drafts and self._at_terminal and _has_colours()

    def legend(self) -> None:
        """Say which colour is which, where there are any."""
        if self.paints:
            colour = ("green", DRAFT)
            self._notes.print(
                Text.assemble(colour, ": accepted drafts; the rest: the target's own tokens")
            )

    def write(self, pieces: Iterable[Piece]) -> None:
        """Show text at once."""
        for piece in pieces:
            print(self._painted(piece) if self.paints else piece.text, end="", flush=True)
            self._mid_line = self._at_terminal and not piece.text.endswith("\n")

    def end_line(self) -> None:
        """End an answer that is complete."""
        print(flush=True)
        self._mid_line = False

    def note(self, message: str) -> None:
        """Tell something that is no part of an answer."""
        self._leave_line()
        self._notes.print(Text(message, NOTE))

    def error(self, message: str) -> None:
        """Tell what went wrong."""
        self._leave_line()
        print(f"specd: {message}", file=sys.stderr)

    def _leave_line(self) -> None:
        """Begin a line of its own where text that broke off stands on the terminal."""
        if self._mid_line:
            print(file=sys.stderr)
            self._mid_line = False

    def _painted(self, piece: Piece) -> str:
        # Not Console.print: it expands tabs and drops control characters.
        if not piece.from_draft:
            return piece.text
        return DRAFT.render(piece.text, color_system=ColorSystem.STANDARD)


class Turns:
    """Shows sequences one behind the other: the first as it comes, each other in its turn."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._seeds: Sequence[int] = ()
        self._turn = 0
        self._held = defaultdict[int, list[Piece]](list)
        self._ended = set[int]()

    def begin(self, seeds: Sequence[int]) -> None:
        """One per sequence that comes."""
        self._seeds = seeds
        self._head()

    def write(self, index: int, pieces: Iterable[Piece]) -> None:
        """Show text of a sequence, now or in its turn."""
        if index == self._turn:
            self._screen.write(pieces)
        else:
            self._held[index] += pieces

    def end(self, index: int) -> None:
        """A sequence is complete."""
        self._ended.add(index)
        while self._turn in self._ended and self._turn + 1 < len(self._seeds):
            self._screen.end_line()
            self._turn += 1
            self._head()
            self._screen.write(self._held.pop(self._turn, []))

    def _head(self) -> None:
        if len(self._seeds) > 1:
            place = f"{self._turn + 1} of {len(self._seeds)}"
            self._screen.note(f"[{place}, seed {self._seeds[self._turn]}]")


def figures(stats: SpeculationStats, num_tokens: int, tokens_per_s: float | None) -> str:
    """What drafting brought to one answer, in a line. tokens_per_s: None where not measurable."""
    steps = _counted(stats.total.verify_steps, "step")
    speed = "" if tokens_per_s is None else f", {tokens_per_s:.0f} tokens/s"
    run = f"{_counted(num_tokens, 'token')} in {steps}{speed}"
    return "; ".join([run, _drafts(stats), *_troubles(stats)])


def _drafts(stats: SpeculationStats) -> str:
    total = stats.total
    if not total.draft_tokens:
        return "no drafts"
    per_step = total.accepted_draft_tokens / max(1, total.verify_steps)
    makers = [name for name, tally in stats.by_drafter.items() if tally.draft_tokens]
    return (
        f"{total.accepted_draft_tokens} of {_counted(total.draft_tokens, 'draft')} accepted, "
        f"{per_step:.2f} accepted drafts per step; drafters: {', '.join(makers)}"
    )


def _troubles(stats: SpeculationStats) -> Iterator[str]:
    """What each drafter failed to bring: steps that it was late for, and its faults."""
    for name, tally in stats.by_drafter.items():
        late = [f"late {_counted(tally.late, 'time')}"] if tally.late else []
        faults = [_counted(tally.faults, "fault")] if tally.faults else []
        if late or faults:
            yield f"{name}: {', '.join(late + faults)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # None: the caller closed it


def _has_colours() -> bool:
    console = Console()  # knows NO_COLOR, and terminals that have none
    return not console.no_color and console.color_system is not None
