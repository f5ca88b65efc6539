"""What the core's loader makes of each tensor, compared with what the model says.

Knows how packed weights are read back; the rest is `specd/model/measuring.py`.
"""

from __future__ import annotations

import torch

from specd.core.linear import CoreLinear
from specd.core.loader import CoreLoader
from specd.model.arch import ModelConfig
from specd.model.blocks import Order
from specd.model.formats import WeightFormat
from specd.model.gguf_file import TensorInfo
from specd.model.linear import Linear
from specd.model.measuring import Conversion, MeasuringLoader, Values
from specd.model.source import ModelSource


class MeasuringCoreLoader(MeasuringLoader, CoreLoader):
    """`conversions`: every use of every tensor, in the order of loading."""

    def __init__(
        self, source: ModelSource, config: ModelConfig, weights: WeightFormat, *, isa: str
    ) -> None:
        CoreLoader.__init__(self, source, config, weights, isa=isa)
        self.conversions: list[Conversion] = []

    def _values(self, made: Linear, held: TensorInfo, order: Order, start: int) -> Values:
        assert isinstance(made, CoreLinear)
        (matrix,) = made.matrices
        return lambda rows: torch.from_numpy(
            matrix.numbers(start + rows.start, rows.stop - rows.start)
        )
