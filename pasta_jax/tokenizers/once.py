"""What is computed once per tokenizer, and forgotten with it: some take 70 MB."""

import functools
import weakref
from collections.abc import Callable
from typing import TypeVar

Computed = TypeVar("Computed")


def once(function: Callable[..., Computed]) -> Callable[..., Computed]:
    """functools.cache, but without keeping the first argument, a tokenizer, alive. The result must not refer to it."""
    found: weakref.WeakKeyDictionary[object, dict[tuple, Computed]] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def computed(tokenizer: object, *rest: object) -> Computed:
        results = found.setdefault(tokenizer, {})
        if rest not in results:
            results[rest] = function(tokenizer, *rest)
        return results[rest]

    return computed
