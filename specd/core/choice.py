"""Which kernels compute the steps of a model: the core's best instruction set, or torch.

Knows what was built and what the processor has. Invariant: what is asked for by name is given or
refused.
"""

from __future__ import annotations

import logging

from specd.core import library
from specd.core.loader import refusal
from specd.errors import StartFailed
from specd.model.arch import ModelConfig
from specd.model.formats import Kernels

_log = logging.getLogger("specd.boot")


def choose_kernels(wanted: Kernels, config: ModelConfig) -> str:
    """The core's fastest instruction set, or torch where the core is not there for this model.

    Raises:
        StartFailed: what was asked for by name is not to be had.
    """
    there, because = library.supported(), refusal(config)
    if wanted == "torch":
        return "torch"
    if wanted != "auto":
        if because is not None:
            raise StartFailed(f"--kernels {wanted} cannot run this model: {because}")
        if wanted not in there:
            names = ", ".join((*there, "torch"))
            raise StartFailed(
                f"--kernels {wanted} is not to be had here; this machine has: {names}"
            )
        return wanted
    if there and because is None:
        return there[0]
    why = because or "it was not built, or this processor lacks AVX2"
    _log.warning("the C++ core is not used: %s; torch computes, several times slower", why)
    return "torch"
