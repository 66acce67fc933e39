"""Prompts that are nearly those of a set are found, and others are not."""

import pytest

from pasta_jax.data.near import Near

SET = Near(
    ["What are the names of some famous actors that started their careers on Broadway?", "Why?", "为什么天空是蓝色的？"]
)


@pytest.mark.parametrize(
    ("prompt", "is_near"),
    [
        ("what are the NAMES of some famous actors, that started their careers on Broadway", True),
        ("Please: What are the names of some famous actors that started their careers on Broadway?", True),
        ("What are the names of some famous actors that started their careers on television?", True),
        ("What are the names of some famous singers that began their careers in London?", False),
        ("why", True),
        ("Why not?", False),
        ("为什么天空是蓝色的", True),
        ("为什么海水是咸的？", False),
        ("?!", False),
    ],
)
def test_near(prompt, is_near):
    assert (prompt in SET) == is_near
