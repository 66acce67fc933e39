"""The answers to one HTTP request: queued together, followed until all have ended, cancelled when the client leaves."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from pasta_jax.decode.engine import EngineClosed, Item, QueueFull
from pasta_jax.decode.request import Event, Request, Result
from pasta_jax.errors import PastaError
from pasta_jax.serve.choice import Choice, Delta
from pasta_jax.serve.log import record
from pasta_jax.serve.protocol import Refusal
from pasta_jax.serve.service import Service

SILENCE_S = 15.0  # proxies end connections that say nothing for a minute, some for half of one


class Session:
    """Created in the event loop; raises a Refusal at once if the queue is full.

    One that goes on `after` another, of the same HTTP request, has its place and what is left of its time.
    """

    def __init__(
        self,
        service: Service,
        requests: Sequence[Request],
        choices: Sequence[Choice],
        round_steps: int,
        after: "Session | None" = None,
    ):
        self.choices, self._service = choices, service
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[tuple[int, Sequence[Item]]] = asyncio.Queue()
        self._open: dict[int, int] = {}  # the engine's number of each answer that has not ended, by its index
        self._began = time.perf_counter()
        self._has_token, self._record = False, record()
        self._deadline = after._deadline if after else self._loop.time() + service.settings.limits.answer_s
        self.expired = False  # the time for answers is over
        try:
            with service.engine.at_once():
                for index, request in enumerate(requests):
                    has_place, deliver = after is not None and index == 0, self._deliver_to(index)
                    self._open[index] = service.engine.submit(request, round_steps, deliver, has_place)
        except PastaError as error:
            self._cancel()
            if isinstance(error, QueueFull):
                raise Refusal(str(error), 429, "queue_full", retry_s=1) from None
            if isinstance(error, EngineClosed):
                raise Refusal(str(error), 503, "stopping", retry_s=5) from None
            raise

    def _deliver_to(self, index: int):
        def deliver(items: Sequence[Item]) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._items.put_nowait, (index, items))

        return deliver

    def leave(self) -> None:
        """Cancel what has not ended: nobody reads it."""
        if self._open:
            self._service.metrics.vanished.inc()
        self._cancel()
        self._record.count(self.choices)

    def _cancel(self) -> None:
        for number in self._open.values():
            self._service.engine.cancel(number)
        self._open.clear()

    async def deltas(self) -> AsyncIterator[tuple[int, list[Delta]]]:
        """What each round adds to each answer, by its index; nothing after a silence, and maybe at an answer's end."""
        talk = self._loop.time() + SILENCE_S
        while self._open:
            try:
                async with asyncio.timeout_at(None if self.expired else min(self._deadline, talk)):
                    index, items = await self._items.get()
            except TimeoutError:
                if talk < self._deadline:
                    yield next(iter(self._open)), []
                    talk = self._loop.time() + SILENCE_S
                    continue
                self.expired = True
                for number in self._open.values():
                    self._service.engine.cancel(number)
                continue
            deltas = self._read(index, items)
            if all(choice.expired for choice in self.choices):
                limit = self._service.settings.limits.answer_s
                raise Refusal(f"no token within {limit:g} s; try again later", 503, "overloaded", retry_s=5)
            if deltas or self.choices[index].ended:
                yield index, deltas
                talk = self._loop.time() + SILENCE_S

    async def read(self) -> None:
        """Follow all answers to their ends."""
        async for _ in self.deltas():
            pass

    def _read(self, index: int, items: Sequence[Item]) -> list[Delta]:
        choice, deltas = self.choices[index], []
        for item in items:
            if isinstance(item, Event):
                if not self._has_token:
                    self._has_token = True
                    self._record.see_token()
                    self._service.metrics.first.observe(time.perf_counter() - self._began)
                if not choice.stopped:
                    deltas += choice.push(item)
                    if choice.stopped:
                        self._service.engine.cancel(self._open[index])
            elif isinstance(item, Result):
                del self._open[index]
                deltas += choice.finish(item)
                self._record.see_answer(item.trace)
                seconds = time.perf_counter() - self._began
                self._service.metrics.answer(item, choice.finish_reason, seconds)
            else:
                del self._open[index]
                if not self.expired:
                    self._cancel()  # the others: the client has not left
                    raise Refusal(str(item), 500, "decoding_failed")
                choice.expired = True
        return deltas
