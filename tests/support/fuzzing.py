"""How long tests search for inputs that break something, and which they try.

Without SPECD_FUZZ_EXAMPLES each test tries the same few hundred inputs every time; with it, so many
other ones.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_EXAMPLES = os.environ.get("SPECD_FUZZ_EXAMPLES", "")


def fuzzed(num_examples: int) -> settings:
    """Settings of a test that tries `num_examples` inputs by default."""
    return settings(
        max_examples=int(_EXAMPLES or num_examples),
        derandomize=not _EXAMPLES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
