"""The weights of toy models, under the name that tests know: they are those of benchmarks/."""

from benchmarks.toy_weights import ToyShape, ToyWeights

__all__ = ["ToyShape", "ToyWeights"]
