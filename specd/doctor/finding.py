"""What the doctor compared: a line of the table, and lines of several rounds joined.

Invariant: a finding counts what was compared, so that "nothing differs" says of how much.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Part = Literal["operations", "logits", "tokens"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of comparison.

    compared: how many times, of what `unit` says. first: a sentence on the first difference, None
    where there is none. drafted, kept: draft tokens that were verified, and that were right.
    """

    part: Part
    name: str
    compared: int
    unit: str
    differences: int
    first: str | None = None
    drafted: int = 0
    kept: int = 0


def joined(findings: Iterable[Finding]) -> list[Finding]:
    """One finding per part and name, in the order in which they first came."""
    found: dict[tuple[str, str], Finding] = {}
    for one in findings:
        earlier = found.get((one.part, one.name))
        found[one.part, one.name] = one if earlier is None else _sum(earlier, one)
    return list(found.values())


def _sum(one: Finding, other: Finding) -> Finding:
    return replace(
        one,
        compared=one.compared + other.compared,
        differences=one.differences + other.differences,
        first=one.first or other.first,
        drafted=one.drafted + other.drafted,
        kept=one.kept + other.kept,
    )
