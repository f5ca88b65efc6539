"""Finds and opens the compiled core, and says which instruction set it may use here.

Knows the library's place and its functions; nothing of models. Where no library was built, or the
processor lacks AVX2, `load` gives None and the torch path runs. Invariant: a library of another
interface version is never called.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Final

from specd.core.layouts import ABI_VERSION, Draw, Linear, Model, Standing, Step

# From the fastest to the slowest; the numbers are those of core.h.
ISAS: Final = {"avx512-bf16": 2, "avx512": 1, "avx2": 0}

_PATH = Path(__file__).with_name("_core.so")

_SIGNATURES: Final = {
    "specd_abi_version": (c_int32, ()),
    "specd_supports": (c_int32, (c_int32,)),
    "specd_create": (c_void_p, (POINTER(Model), c_int64, c_int32, c_int32)),
    "specd_destroy": (None, (c_void_p,)),
    "specd_run": (None, (c_void_p, POINTER(Step))),
    "specd_linear": (None, (POINTER(Linear), c_void_p, c_int64, c_void_p, c_int32, c_int32)),
    "specd_packed_bytes": (c_int64, (c_int32, c_int64, c_int64)),
    "specd_exact_format": (c_int32, (c_int32,)),
    "specd_pack": (
        c_int32,
        (c_int32, c_int32, c_void_p, c_int64, c_int64, c_void_p, c_int32),
    ),
    "specd_sampler_create": (c_void_p, (c_void_p, c_int64, c_int32, c_int32)),
    "specd_sampler_destroy": (None, (c_void_p,)),
    "specd_sample": (None, (c_void_p, POINTER(Draw), c_int64, c_void_p)),
    "specd_scores": (None, (c_void_p, POINTER(Draw), c_void_p)),
    "specd_examine": (None, (c_void_p, c_void_p, c_int64, c_void_p, c_void_p)),
    "specd_measure": (None, (c_void_p, POINTER(Standing), c_int64)),
    "specd_hashes": (None, (c_uint64, c_uint64, c_int64, c_void_p, c_int32)),
    "specd_noise": (None, (c_void_p, c_int64, c_void_p, c_int32)),
    "specd_read": (c_int64, (c_void_p, c_void_p, c_int64, c_int32)),
    "specd_unpack": (None, (c_int32, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int32)),
}


@cache
def load() -> ctypes.CDLL | None:
    """The core, or None where it was not built or is of another version."""
    try:
        library = ctypes.CDLL(str(_PATH))
    except OSError:
        return None
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            return None
        function.restype, function.argtypes = result, arguments
    return library if library.specd_abi_version() == ABI_VERSION else None


@cache
def supported() -> tuple[str, ...]:
    """Instruction sets that the core has and this processor runs, the fastest first."""
    library = load()
    if library is None:
        return ()
    return tuple(name for name, number in ISAS.items() if library.specd_supports(number))


def opened() -> ctypes.CDLL:
    """The core, for those who run only where `supported` named an instruction set."""
    library = load()
    assert library is not None, "whoever computes with the core has asked for it"
    return library


def check(result: int) -> int:
    """A size, a format or success; the core says -1 to what it does not have."""
    assert result >= 0, "the core was asked for a conversion that it does not have"
    return result
