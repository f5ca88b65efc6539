"""Random tensors of every block type, and what the `gguf` package reads from them.

Knows where a block's scales lie. Invariant: scales are finite; all other bits are any.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

from specd.model.formats import FLOAT_TYPES
from specd.model.gguf_file import TensorInfo

# Where the fp16 numbers of a block lie, in bytes.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip


def random_tensor(
    type_name: str,
    shape: tuple[int, ...],
    seed: int = 0,
    *,
    name: str = "w",
    exponents: tuple[int, int] = (-3, -2),
) -> TensorInfo:
    """Any bytes that a file may hold, but for numbers that are no numbers.

    exponents: the scales are normal numbers times a power of ten in this range.
    """
    kind = GGMLQuantizationType[type_name]
    per_block, block_bytes = GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (np.prod(shape) // per_block, block_bytes), np.uint8)
    size = 10.0 ** random.integers(*exponents)
    for place in HALVES.get(type_name, ()):
        scales = random.normal(0, size, len(raw)).astype(np.float16)
        raw[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    if type_name in FLOAT_TYPES:
        values = random.normal(0, size, np.prod(shape)).astype(np.float32)
        values[::7], values[1::7] = 0.0, -0.0
        raw = quantize(values, kind).view(np.uint8)
    return TensorInfo(name, type_name, shape, raw.reshape(-1))


def reference(tensor: TensorInfo) -> npt.NDArray[np.float32]:
    """The package's numbers, of the whole tensor at once."""
    kind = GGMLQuantizationType[tensor.type_name]
    per_block, block_bytes = GGML_QUANT_SIZES[kind]
    row = tensor.shape[-1] // per_block * block_bytes
    values: npt.NDArray[np.float32] = dequantize(tensor.data.reshape(*tensor.shape[:-1], row), kind)
    return values
