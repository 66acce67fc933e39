"""The transcript of a running request: what each thread has written so far, and which text can be printed already."""

import dataclasses

from pasta_jax.lang.tags import TagIds


@dataclasses.dataclass
class ThreadText:
    """The text of a thread up to now; thread 0 is main."""

    number: int
    topic: str
    tens: int
    place: int = 0  # of its promise: characters that main had written before
    text: str = ""
    tokens: int = 0
    step: int = 0  # of its latest token
    ended: bool = False


class Transcript:
    """The answer in reading order: a chunk's text is placed at its promise, main's later text follows it.

    `push` returns the text whose place is certain: of several open chunks, only the first one's text is returned as it
    grows; the text of the others waits until the chunks before them have ended.
    """

    def __init__(self, tags: TagIds):
        self._tags = tags
        self.threads = [ThreadText(0, "", 0)]
        self.step = 0
        self._parts: list[tuple[int, list[str]]] = [(0, [])]  # (thread, pieces not returned yet) in reading order
        self._topic: list[str] | None = None  # pieces of the promise that main is writing
        self._blocks: dict[int, list[str]] = {}
        self._returned = 0  # characters returned so far

    def push(self, thread: int, token: int, step: int, text: str) -> str:
        """Add one event; returns the text that has become certain, possibly empty."""
        tags, writer = self._tags, self.threads[thread]
        writer.tokens += 1
        writer.step = self.step = step
        if thread:
            writer.text += text
            self._blocks[thread].append(text)
            writer.ended = token == tags.end_async
        elif self._topic is None or token == tags.promise:
            writer.text += text
            self._parts[-1][1].append(text)
            self._topic = [] if token == tags.promise else None
        else:
            self._topic.append(text)
            if tags.is_close(token):
                self.threads[self.open("".join(self._topic))].tens = int(tags.tens(token))
                self._topic = None
        return self._certain()

    def open(self, topic: str) -> int:
        """The number of a new thread that main has not promised."""
        number = len(self.threads)
        self.threads.append(ThreadText(number, topic, 0, len(self.threads[0].text)))
        self._blocks[number] = []
        self._parts += [(number, self._blocks[number]), (0, [])]
        return number

    def _certain(self) -> str:
        certain = []
        while True:
            thread, pieces = self._parts[0]
            certain += pieces
            pieces.clear()
            last = len(self._parts) == 1
            if last or (thread and not self.threads[thread].ended):
                break
            self._parts.pop(0)
        text = "".join(certain)
        self._returned += len(text)
        return text

    def rest(self, answer: str) -> str:
        """The part of the finished answer that `push` has not returned."""
        return answer[self._returned :]
