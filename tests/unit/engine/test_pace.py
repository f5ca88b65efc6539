"""What the loop learns of its own speed."""

from __future__ import annotations

import pytest

from specd.engine.pace import Pace


def test_before_the_first_long_step_no_prompt_is_hopeless_that_has_any_time() -> None:
    pace = Pace()
    assert pace.hopeless_s(8000, 0.001) is None
    pace.learn(63, 1.0)
    assert pace.hopeless_s(8000, 0.001) is None
    assert pace.hopeless_s(8000, -0.001) is not None


def test_a_prompt_is_hopeless_with_less_than_half_of_what_the_fastest_step_would_need() -> None:
    pace = Pace()
    for num_positions, seconds in ((256, 2.0), (256, 0.5), (128, 1.0), (1, 0.000001)):
        pace.learn(num_positions, seconds)
    assert pace.hopeless_s(512, 0.51) is None
    assert pace.hopeless_s(512, 0.49) == pytest.approx(1.0)


def test_what_a_standstill_taught_is_forgotten_by_refusing() -> None:
    pace = Pace()
    pace.learn(256, 12.0)
    refusals = [pace.hopeless_s(256, 5.0) is not None for _ in range(5)]
    assert refusals == [True, False, False, False, False]
    assert sum(pace.hopeless_s(256, 1.0) is not None for _ in range(20)) < 10


def test_the_step_time_follows_slowly() -> None:
    pace = Pace()
    pace.learn(1, 0.010)
    assert pace.step_time_s == pytest.approx(0.010)
    pace.learn(1, 0.020)
    assert 0.010 < pace.step_time_s < 0.012
