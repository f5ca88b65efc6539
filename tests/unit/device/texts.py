"""Runners for tests that feed texts by hand (`specd/device/texts.py`), and their threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from specd.core import library
from specd.core.decoder import CoreDecoder
from specd.core.loader import CoreLoader
from specd.device.core_runner import CoreRunner
from specd.device.eager import EagerRunner, packed_buckets
from specd.engine.step_types import LayoutSpec
from specd.model.arch import config_from_gguf
from specd.model.decoder import Decoder
from specd.model.formats import WeightFormat
from specd.model.opening import open_model
from specd.model.weights import load_weights, read_weights


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """`count` threads and inference mode, as on the device thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)


PACKED = LayoutSpec(packed_buckets(512))
# What computes a step here: the core with each instruction set that this machine has, and torch.
CORE_KERNELS = library.supported()
KERNELS = (*CORE_KERNELS, "torch")
AnyRunner = EagerRunner | CoreRunner


def load_runner(
    path: Path,
    weights: WeightFormat,
    *,
    strict: bool = True,
    layout: LayoutSpec = PACKED,
    num_pages: int = 64,
) -> EagerRunner:
    source = open_model(path)
    config = config_from_gguf(source.metadata)
    decoder = Decoder(config, load_weights(source, config, weights, strict=strict))
    return EagerRunner(decoder, num_pages=num_pages, layout=layout, strict=strict)


def load_core(
    path: Path,
    weights: WeightFormat,
    kernels: str,
    *,
    max_positions: int = 512,
    num_pages: int = 64,
) -> CoreRunner:
    """A runner of the core, with as many threads as torch has now."""
    source = open_model(path)
    config = config_from_gguf(source.metadata)
    loader = CoreLoader(source, config, weights, isa=kernels)
    read = read_weights(loader, config, lambda done, total: None)
    decoder = CoreDecoder(config, read, isa=kernels, max_positions=max_positions)
    return CoreRunner(decoder, num_pages=num_pages)


def load_any(path: Path, weights: WeightFormat, kernels: str, *, num_pages: int = 64) -> AnyRunner:
    """The runner of one of `KERNELS`."""
    if kernels == "torch":
        return load_runner(path, weights, num_pages=num_pages)
    return load_core(path, weights, kernels, num_pages=num_pages)
