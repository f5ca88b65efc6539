"""The drafter `grammar`: what a structure leaves no choice about.

Knows the structures of running sequences by request id, and their committed tokens through them; a
request without a structure gets nothing. Each sequence is in `live` from its first step to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from drafters.contract import BaseDrafter, DraftContext

if TYPE_CHECKING:
    from specd.structure.matching import SequenceStructure

NAME = "grammar"


class GrammarDrafter(BaseDrafter):
    """Asks each row's structure: 5 us, and 50 where it forces a long text."""

    inline: ClassVar[bool] = True

    def __init__(self) -> None:
        self.live: dict[str, SequenceStructure] = {}

    def propose(
        self, batch: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[list[int] | None]:
        """The forced tokens of each row, None for a request without a structure."""
        return [self._draft(row.request_id, n) for row, n in zip(batch, budgets, strict=True)]

    def _draft(self, request_id: str, budget: int) -> list[int] | None:
        structure = self.live.get(request_id)
        return None if structure is None else structure.forced(budget)
