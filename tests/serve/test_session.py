"""The answers to a request, followed to their ends."""

import asyncio
from unittest.mock import MagicMock, Mock

from pasta_jax.serve.app import events_of
from pasta_jax.serve.choice import Choice
from pasta_jax.serve.delivery import SILENT, event
from pasta_jax.serve.session import Session
from pasta_jax.serve.settings import ServeSettings


def test_a_stream_says_something_while_it_waits(monkeypatch):
    monkeypatch.setattr("pasta_jax.serve.session.SILENCE_S", 0.01)
    waiting, ended = (Choice(Mock(), (), False) for _ in range(2))
    ended.result = Mock()

    async def seen() -> None:
        session = Session(MagicMock(settings=ServeSettings()), [None, None], [ended, waiting], 1)
        del session._open[0]
        deltas = session.deltas()
        assert [await anext(deltas) for _ in range(2)] == [(1, []), (1, [])]
        events = events_of(session, Mock(opening=lambda *_: {}), Mock())
        assert [await anext(events) for _ in range(4)] == [event({}), event({}), SILENT, SILENT]

    asyncio.run(seen())
