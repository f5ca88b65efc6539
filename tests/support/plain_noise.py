"""Keyed noise in plain Python, written from docs/noise.md alone: what the published vectors hold.

Knows integers of any size and fp64 logarithms; shares nothing with specd. `python -m
tests.support.plain_noise` writes tests/data/noise.json. 64-bit integers are strings there, as in
JSON of protobuf: many a reader of JSON has no integers beyond 2^53.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[1] / "data" / "noise.json"

SEEDS = (0, 1, 1 << 63, (1 << 64) - 1)
POSITIONS = (0, 1, 4095, 1 << 31)
TOKENS = (0, 1, 31, 49151, 151935)
INDICES = (0, 1, 2, 15)
# Both ends, the first integer whose u is not kept at its own value, and an odd one in the middle.
EDGES = (0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 129, (1 << 32) - 128, (1 << 32) - 1)


def finalise(z: int) -> int:
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) % 2**64
    return z ^ z >> 31


def key_of(seed: int, position: int) -> int:
    return finalise((finalise(seed) + position * 0x9E3779B97F4A7C15) % 2**64)


def sequence_seed_of(seed: int, index: int) -> int:
    if index == 0:
        return seed
    return finalise((finalise(seed) + index * 0xD1342543DE82EF95) % 2**64)


def mix(x: int) -> int:
    x = ((x ^ x >> 16) * 0x7FEB352D) % 2**32
    x = ((x ^ x >> 15) * 0x846CA68B) % 2**32
    return x ^ x >> 16


def h_of(seed: int, position: int, token: int) -> int:
    key = key_of(seed, position)
    return mix(mix(token ^ key >> 32) ^ key % 2**32)


def g_of(h: int) -> float:
    (u,) = struct.unpack("f", struct.pack("f", (h + 0.5) / 2**32))  # to the nearest fp32
    return -math.log(-math.log1p(-min(u, 1 - 2**-24)))


def document() -> dict[str, list[dict[str, Any]]]:
    """Everything that is published."""
    places = [(seed, position) for seed in SEEDS for position in POSITIONS]
    return {
        "keys": [
            {"seed": str(seed), "position": position, "key": str(key_of(seed, position))}
            for seed, position in places
        ],
        "vectors": [_vector(*place, token) for place in places for token in TOKENS],
        "edges": [{"h": h, "g": g_of(h)} for h in EDGES],
        "sequence_seeds": [
            {"seed": str(seed), "index": k, "sequence_seed": str(sequence_seed_of(seed, k))}
            for seed in SEEDS
            for k in INDICES
        ],
    }


def _vector(seed: int, position: int, token: int) -> dict[str, Any]:
    h = h_of(seed, position, token)
    return {"seed": str(seed), "position": position, "token": token, "h": h, "g": g_of(h)}


def as_text(parts: dict[str, list[dict[str, Any]]]) -> str:
    """One vector a line."""
    return "{" + ",\n".join(f'"{name}": [\n{_lines(part)}]' for name, part in parts.items()) + "}\n"


def _lines(part: Sequence[dict[str, Any]]) -> str:
    return ",\n".join(json.dumps(vector) for vector in part)


if __name__ == "__main__":
    VECTORS.write_text(as_text(document()))
