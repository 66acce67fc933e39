"""A model's own rules, read from generation_config.json, and a request's, in which explicit ones win."""

import json
import pickle

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.weights.generation_config import FILE, as_json, read_defaults
from pasta_jax.weights.rules import Defaults, Given, Rules, filled, recorded

OURS = {"max_topic_words": 3, "distinct_topics": True, "end_stray_chunks": True}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"do_sample": True, "temperature": 0.6, "pasta_jax": OURS}, Defaults(0.6, 0, 1.0, 3, True, True)),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 64}, Defaults(0.6, 64, 0.9)),
        ({"do_sample": True, "eos_token_id": [1, 2], "top_p": None}, Defaults(temperature=1.0)),
        ({"temperature": 0.6}, Defaults()),  # greedy, as in Hugging Face's tools
        ({"pasta_jax": {"distinct_topics": True}}, Defaults(distinct_topics=True)),
        ({"pasta_jax": {"fork_bias": -2}}, Defaults(fork_bias=-2.0)),
        ({"repetition_penalty": 1.2, "min_p": 0.1}, Defaults(repetition_penalty=1.2)),  # the one counts greedily too
        ({"do_sample": True, "min_p": 0.1}, Defaults(temperature=1.0, min_p=0.1)),
        ({}, Defaults()),
    ],
)
def test_the_file(content, expected, tmp_path):
    assert read_defaults(tmp_path) is None
    for written in (content, as_json(expected)):
        (tmp_path / FILE).write_text(json.dumps(written))
        assert read_defaults(tmp_path) == expected


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"do_sample": true, "temperature": "hot"}', '{"do_sample": true, "top_p": -1}', '{"pasta_jax": 3}'],
)
def test_a_malformed_file_is_refused_by_name(content, tmp_path):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(PastaError, match=rf"{FILE}: .*; fix or delete the file"):
        read_defaults(tmp_path)


def test_explicit_rules_win():
    own = Defaults(temperature=0.6, top_p=0.9, max_topic_words=3, distinct_topics=True)
    assert filled(Given(), own) == Rules(temperature=0.6, top_p=0.9, max_topic_words=3, distinct_topics=True)
    given = Given(temperature=0.0, top_p=1.0, distinct_topics=False, seed=1, max_chunk_tokens=0)
    assert filled(given, own) == Rules(max_topic_words=3, seed=1, max_chunk_tokens=0)
    assert pickle.loads(pickle.dumps(given)) == given  # sent to the workers of a cluster


def test_records_name_the_rules_that_older_records_name():
    names = "temperature top_k top_p seed max_topic_tokens max_chunk_tokens max_topic_words distinct_topics"
    assert set(recorded(Rules())) == {*names.split(), "end_stray_chunks"}
