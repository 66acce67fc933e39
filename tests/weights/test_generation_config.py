"""A model's own options: read from generation_config.json, used where an option is None."""

import dataclasses
import json

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.weights.generation_config import FILE, Defaults, filled, read_defaults

RULES = {"max_topic_words": 3, "distinct_topics": True, "end_stray_chunks": True}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"do_sample": True, "temperature": 0.6, "pasta_jax": RULES}, Defaults(0.6, 0, 1.0, 3, True, True)),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 64}, Defaults(0.6, 64, 0.9)),
        ({"do_sample": True, "eos_token_id": [1, 2], "top_p": None}, Defaults(temperature=1.0)),
        ({"temperature": 0.6}, Defaults()),  # greedy, as in Hugging Face's tools
        ({"pasta_jax": {"distinct_topics": True}}, Defaults(distinct_topics=True)),
        ({}, Defaults()),
    ],
)
def test_the_file(content, expected, tmp_path):
    assert read_defaults(tmp_path) is None
    (tmp_path / FILE).write_text(json.dumps(content))
    assert read_defaults(tmp_path) == expected


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"do_sample": true, "temperature": "hot"}', '{"do_sample": true, "top_p": 0}', '{"pasta_jax": 3}'],
)
def test_a_malformed_file_is_refused_by_name(content, tmp_path):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(PastaError, match=rf"{FILE}: .*; fix or delete the file"):
        read_defaults(tmp_path)


def test_explicit_options_win():
    @dataclasses.dataclass(frozen=True)
    class Options:
        seed: int | None
        temperature: float | None
        top_p: float | None
        distinct_topics: bool | None

    defaults = Defaults(0.6, 0, 0.9, 3, True)
    assert filled(Options(None, None, None, None), defaults) == Options(None, 0.6, 0.9, True)
    assert filled(Options(1, 0.0, 1.0, False), defaults) == Options(1, 0.0, 1.0, False)
