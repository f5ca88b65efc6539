"""Words for the operator's choices about arithmetic. Imports nothing, so that a flag costs nothing.

WeightFormat: what linear layers are stored as. Invariance: strict keeps a row's bits independent of
what runs beside it; relaxed is faster where that costs something, and near-ties may flip.
"""

from typing import Literal

WeightFormat = Literal["fp32", "bf16", "int4"]
Invariance = Literal["strict", "relaxed"]
