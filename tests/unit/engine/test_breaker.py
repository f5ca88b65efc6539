"""Promises of the breaker, on a clock that only the test moves."""

from __future__ import annotations

import logging

import pytest

from specd.engine.breaker import FIRST_COOLDOWN_S, LONGEST_COOLDOWN_S, THRESHOLD, Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(clock: Clock) -> Breaker:
    breaker = Breaker("guest", clock)
    for _ in range(THRESHOLD):
        breaker.failure()
    return breaker


def test_it_opens_at_the_third_failure_in_a_row_and_not_before(clock: Clock) -> None:
    breaker = Breaker("guest", clock)
    breaker.failure()
    breaker.failure()
    assert breaker.allows()
    breaker.failure()
    assert not breaker.allows()
    assert breaker.is_open


def test_a_success_between_failures_starts_the_row_anew(clock: Clock) -> None:
    breaker = Breaker("guest", clock)
    for _ in range(5):
        breaker.failure()
        breaker.failure()
        breaker.success()
    assert breaker.allows()


def test_it_asks_nothing_until_the_cooldown_is_over(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += FIRST_COOLDOWN_S - 0.001
    assert not breaker.allows()
    clock.now += 0.001
    assert breaker.allows()
    assert breaker.is_open


def test_a_probe_that_succeeds_closes_it(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += FIRST_COOLDOWN_S
    assert breaker.allows()
    breaker.success()
    assert not breaker.is_open
    breaker.failure()
    assert breaker.allows()


def test_one_failed_probe_is_enough_to_open_it_again(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += FIRST_COOLDOWN_S
    assert breaker.allows()
    breaker.failure()
    assert not breaker.allows()


def test_the_cooldown_doubles_up_to_its_limit_and_starts_anew_after_a_success(
    clock: Clock,
) -> None:
    breaker = opened(clock)
    waited = []
    for _ in range(7):
        before = clock.now
        while not breaker.allows():
            clock.now += 0.5
        waited.append(clock.now - before)
        breaker.failure()
    assert waited == [1, 2, 4, 8, 16, LONGEST_COOLDOWN_S, LONGEST_COOLDOWN_S]
    clock.now += LONGEST_COOLDOWN_S
    assert breaker.allows()
    breaker.success()
    for _ in range(THRESHOLD):
        breaker.failure()
    clock.now += FIRST_COOLDOWN_S
    assert breaker.allows()


def test_failures_while_open_do_not_prolong_it(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += FIRST_COOLDOWN_S / 2
    breaker.failure()
    clock.now += FIRST_COOLDOWN_S / 2
    assert breaker.allows()


def test_each_transition_is_logged_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specd.drafting")
    breaker = opened(clock)
    breaker.failure()
    assert not breaker.allows()
    clock.now += FIRST_COOLDOWN_S
    assert breaker.allows()
    assert breaker.allows()
    breaker.success()
    breaker.success()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert "not asked" in messages[0]
    assert "probing" in messages[1]
    assert "works again" in messages[2]
