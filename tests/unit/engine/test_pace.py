"""What the loop learns of its own speed."""

from __future__ import annotations

import pytest

from specd.engine.pace import Pace


def test_before_the_first_long_step_no_prompt_is_called_too_long() -> None:
    pace = Pace()
    assert pace.least_time_s(8000) == 0.0
    pace.learn(63, 1.0)
    assert pace.least_time_s(8000) == 0.0


def test_the_least_time_is_that_of_the_fastest_step() -> None:
    pace = Pace()
    for num_positions, seconds in ((256, 2.0), (256, 0.5), (128, 1.0), (1, 0.000001)):
        pace.learn(num_positions, seconds)
    assert pace.least_time_s(512) == pytest.approx(1.0)


def test_the_step_time_follows_slowly() -> None:
    pace = Pace()
    pace.learn(1, 0.010)
    assert pace.step_time_s == pytest.approx(0.010)
    pace.learn(1, 0.020)
    assert 0.010 < pace.step_time_s < 0.012
