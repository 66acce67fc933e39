"""How many replicas of a server requests need, if their number may follow them: by what has been so for a while."""

from collections.abc import Collection

from pasta_jax.serve.front import Replica
from pasta_jax.serve.settings import ServeSettings


class Demand:
    """Since when the replicas are too few, or too many."""

    def __init__(self, settings: ServeSettings, now: float):
        self._settings = settings
        self._enough = self._needed = now  # when the replicas were last enough, and all of them last needed

    def change(self, now: float, wanted: Collection[Replica]) -> int:
        """1: one more, -1: one fewer, 0: as many, as of their last checks."""
        waiting, running = (sum(one.load[name] for one in wanted) for name in ("waiting", "running"))
        count, scaling = len(wanted), self._settings.scaling
        is_starting = any(one.client is None and not one.has_failed for one in wanted)
        if not waiting or is_starting or count == self._settings.most_replicas:
            self._enough = now
        if count == self._settings.replicas or waiting + running > self._settings.decoding.lanes * (count - 1) / 2:
            self._needed = now
        change = 0
        if now - self._enough >= scaling.grow_s:
            change = 1
        elif now - self._needed >= scaling.shrink_s:
            change = -1
        if change:
            self._enough = self._needed = now
        return change
