"""What is computed once per tokenizer ends with it."""

import gc
import weakref

from pasta_jax.automata.vocabulary import pieces
from pasta_jax.decode.topics import topic_ids
from tests.helpers.byte_tokenizer import ByteTokenizer


def test_a_result_is_kept_as_long_as_its_tokenizer():
    tokenizer = ByteTokenizer()
    assert topic_ids(tokenizer) is topic_ids(tokenizer)
    assert pieces(tokenizer, 384) is pieces(tokenizer, 384)
    assert pieces(tokenizer, 384) is not pieces(tokenizer, 416)
    reference = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert reference() is None
