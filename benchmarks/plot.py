"""Figures as a picture: a panel per measure, bars by prompt length and contender.

Knows matplotlib, which the extra `bench` installs; nothing of how figures come about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file, no window

from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.contest import Figures

_PANELS: tuple[tuple[str, Callable[[Figures], float]], ...] = (
    ("prompt, tokens/s", lambda one: one.prefill_tokens_per_s),
    ("decoding of a stream, tokens/s", lambda one: one.decode_tokens_per_s),
    ("all streams with their prompts, tokens/s", lambda one: one.total_tokens_per_s),
)
_SIZE = (15, 5)
_GROUP_WIDTH = 0.8


def draw(found: Sequence[Figures], bounds: dict[int, float], path: Path, *, title: str) -> None:
    """Write a PNG. bounds: tokens/s of plain decoding, by prompt length, drawn as a line."""
    lengths = sorted({one.prompt_tokens for one in found})
    names = list(dict.fromkeys(one.contender for one in found))
    figure, panels = pyplot.subplots(1, len(_PANELS), figsize=_SIZE, layout="constrained")
    for axes, (label, value) in zip(panels, _PANELS, strict=True):
        _panel(axes, found, lengths, names, value)
        axes.set_title(label)
    for place, length in enumerate(lengths):
        if length in bounds:
            half = _GROUP_WIDTH / 2
            panels[1].hlines(bounds[length], place - half, place + half, "black", "dashed")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(names), 5))
    figure.suptitle(title)
    figure.savefig(path, format="png", dpi=120)
    pyplot.close(figure)


def _panel(
    axes: Axes,
    found: Sequence[Figures],
    lengths: Sequence[int],
    names: Sequence[str],
    value: Callable[[Figures], float],
) -> None:
    width = _GROUP_WIDTH / len(names)
    for number, name in enumerate(names):
        values = {one.prompt_tokens: value(one) for one in found if one.contender == name}
        offset = (number + 0.5) * width - _GROUP_WIDTH / 2
        places = [lengths.index(length) + offset for length in values]
        axes.bar(places, list(values.values()), width, label=name)
    axes.set_xticks(range(len(lengths)), [f"prompt {length}" for length in lengths])
