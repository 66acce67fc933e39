"""How many examples Hypothesis tries: as many as a test names, a tenth of them in quick runs. Always the same ones."""

import os

from hypothesis import settings


def examples(count: int) -> settings:
    """A decorator for a test with `@given`."""
    count = count // 10 if os.environ.get("PASTA_JAX_QUICK") else count
    return settings(max_examples=count, derandomize=True, deadline=None)
