"""Encoding a long text holds up no other thread."""

import sys
import threading
import time

import tokenizers

from pasta_jax.tokenizers.vocabulary import LONG, ids_of


def test_other_threads_run_while_a_long_text_is_encoded():
    """A server's streams, while a client sends a prompt of 256 KiB."""
    encoder = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    began, ended, ids = threading.Event(), threading.Event(), []

    def encode(text: str) -> None:
        began.set()
        ids.extend(ids_of(encoder, text))
        ended.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # a thread that holds the interpreter's lock keeps it
    try:
        threading.Thread(target=encode, args=["ab" * 500_000]).start()
        began.wait()
        turns = 0
        while not ended.is_set():
            turns += 1
            time.sleep(0.001)
    finally:
        sys.setswitchinterval(interval)
    assert ids == [2] * 500_000
    assert turns > 2
    assert ids_of(encoder, "ab" * LONG) == 2 * ids_of(encoder, "ab" * (LONG // 2)) == [2] * LONG
