"""Words for the operator's choices about arithmetic, and what each makes of a tensor.

WeightFormat: what becomes of tensors of two dimensions. `fp32` and `bf16` convert every tensor.
The others keep the quantised blocks of a file as they are; they differ in what they make of
tensors that the file stores in full. Norms and biases are never quantised.
Invariance: strict keeps a row's bits independent of what runs beside it; relaxed is faster where
that costs something, and near-ties may flip.

Kernels: what computes a step: the C++ core with an instruction set, or torch.

Imports nothing, so that a flag costs nothing. Invariant: what a tensor becomes depends on its own
block type and on the choice, and on nothing else.
"""

from collections.abc import Mapping
from typing import Literal

WeightFormat = Literal["auto", "fp32", "bf16", "int8", "int4"]
Invariance = Literal["strict", "relaxed"]
Kernels = Literal["auto", "avx512-bf16", "avx512", "avx2", "torch"]

FLOAT_TYPES = ("F32", "F16", "BF16")
QUANTISED_TYPES = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
)  # fmt: skip
SUPPORTED_TYPES = FLOAT_TYPES + QUANTISED_TYPES

# What each choice holds of a tensor that the file stores in full.
_FULL_BECOMES: Mapping[WeightFormat, str] = {
    "auto": "BF16", "fp32": "F32", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_1",
}  # fmt: skip
# What torch multiplies by, for each type that is held. Its int4 kernel takes groups of 32 weights.
# Its int8 kernel has one scale per row, which costs a Q8_0 head 0.8% (0.5B) and 1.1% (135M) of
# relative RMS, more than the 0.5% that Q8_0 itself costs; bf16 costs 0.15%.
TORCH_FORMATS: Mapping[str, str] = {
    "F32": "fp32",
    "BF16": "bf16",
    "Q4_0": "int4",
    "Q4_1": "int4",
    "Q4_K": "int4",
    "Q5_0": "bf16",
    "Q5_1": "bf16",
    "Q8_0": "bf16",
    "Q2_K": "bf16",
    "Q3_K": "bf16",
    "Q5_K": "bf16",
    "Q6_K": "bf16",
}


def held_type(type_name: str, weights: WeightFormat) -> str:
    """The block type in which a tensor of two dimensions is held, whatever computes with it."""
    if type_name in FLOAT_TYPES or weights in ("fp32", "bf16"):
        return _FULL_BECOMES[weights]
    return type_name
