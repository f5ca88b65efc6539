"""Typed look-ups in a model's metadata, under the prefix of its architecture.

Knows which keys were read, and nothing of what they mean. Invariant: a value is of the asked type
and within its bounds, or refused by the name of its key.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Mapping

from specd.errors import ModelFileError


class Fields:
    """The keys of one architecture. Without a default, a missing value is refused."""

    def __init__(self, metadata: Mapping[str, object], prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix
        self._read: set[str] = set()

    def _value(self, key: str, default: object = None) -> object:
        self._read.add(key)
        return self._metadata.get(f"{self._prefix}.{key}", default)

    def has(self, key: str) -> bool:
        return f"{self._prefix}.{key}" in self._metadata

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number from `least`."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            wanted = "a positive integer" if least else "an integer from 0"
            raise self._absurd(key, wanted, value)
        return value

    def number(self, key: str, default: float | None = None, *, least: float = 0) -> float:
        """A finite number from `least`, and above 0."""
        value = self._value(key, default)
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
        if not max(least, math.ulp(0)) <= number < math.inf:
            wanted = f"a number from {least:g}" if least else "a positive number"
            raise self._absurd(key, wanted, value)
        return float(number)

    def text(self, key: str, default: str) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._absurd(key, "a text", value)
        return value

    def pattern(self, key: str, length: int, full_every: int) -> list[bool]:
        """One truth per layer, as a list or as a number: all but every so many-th; 0: all."""
        value = self._value(key, full_every)
        if isinstance(value, list) and len(value) == length and all(v in (0, 1) for v in value):
            return [bool(each) for each in value]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise self._absurd(key, f"an integer or {length} truths", value)
        return [not value or bool((layer + 1) % value) for layer in range(length)]

    def _absurd(self, key: str, wanted: str, value: object) -> ModelFileError:
        shown = reprlib.repr(value)
        return ModelFileError(f"{self._prefix}.{key} should be {wanted} and is {shown}")

    def error(self, key: str, because: str) -> ModelFileError:
        """The refusal of a value that is there."""
        shown = reprlib.repr(self._metadata.get(f"{self._prefix}.{key}"))
        return ModelFileError(f"the model file sets {self._prefix}.{key} to {shown}: {because}")

    def refuse_unless(self, key: str, neutral: object, because: str) -> None:
        """Raises: ModelFileError where the key has another value than the neutral one."""
        if self._value(key, neutral) != neutral:
            raise self.error(key, because)

    def refuse_unread(self, harmless: Collection[str]) -> None:
        """A key that nobody read could change the model's output.

        Raises: ModelFileError where there is one that is not `harmless`.
        """
        known = {f"{self._prefix}.{key}" for key in (*self._read, *harmless)}
        mine = {key for key in self._metadata if key.startswith(f"{self._prefix}.")}
        if unread := sorted(mine - known):
            raise ModelFileError(
                f"the model file has settings this version does not know: {', '.join(unread[:5])}"
            )
