"""Follows one request's events: what each thread has written so far, and what may be printed for good."""

import dataclasses

from pasta_jax.lang.tags import TagIds


@dataclasses.dataclass
class Growing:
    """A thread as far as it has come; thread 0 is main."""

    number: int
    topic: str
    tens: int
    text: str = ""
    tokens: int = 0
    step: int = 0  # of its latest token
    ended: bool = False


class Reading:
    """The answer in reading order: a chunk's text stands at its promise, main's later text behind it.

    `push` returns what is certain: of several open chunks only the first one's text comes out, others wait their turn.
    """

    def __init__(self, tags: TagIds):
        self._tags = tags
        self.threads = [Growing(0, "", 0)]
        self.step = 0
        self._parts: list[tuple[int, list[str]]] = [(0, [])]  # (thread, pieces not printed yet) in reading order
        self._topic: list[str] | None = None  # pieces of the promise that main is writing
        self._blocks: dict[int, list[str]] = {}
        self._told = 0  # characters printed so far

    def push(self, thread: int, token: int, step: int, text: str) -> str:
        """Take one event; text that is certain now, perhaps none."""
        tags, grows = self._tags, self.threads[thread]
        grows.tokens += 1
        grows.step = self.step = step
        if thread:
            grows.text += text
            self._blocks[thread].append(text)
            grows.ended = token == tags.end_async
        elif self._topic is None or token == tags.promise:
            grows.text += text
            self._parts[-1][1].append(text)
            self._topic = [] if token == tags.promise else None
        else:
            self._topic.append(text)
            if tags.is_close(token):
                number = len(self.threads)
                self.threads.append(Growing(number, "".join(self._topic), int(tags.tens(token))))
                self._blocks[number] = []
                self._parts += [(number, self._blocks[number]), (0, [])]
                self._topic = None
        return self._certain()

    def _certain(self) -> str:
        printed = []
        while True:
            thread, pieces = self._parts[0]
            printed += pieces
            pieces.clear()
            last = len(self._parts) == 1
            if last or (thread and not self.threads[thread].ended):
                break
            self._parts.pop(0)
        text = "".join(printed)
        self._told += len(text)
        return text

    def rest(self, answer: str) -> str:
        """What is still to be printed once the request is done and its text is known."""
        return answer[self._told :]
