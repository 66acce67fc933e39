"""A loaded model is a key and is compared, by identity."""

import dataclasses

from tests.helpers.traces import tiny_model


def test_a_model_is_equal_to_itself_only():
    model = tiny_model()
    assert {model: "here"}[model] == "here"
    assert model != dataclasses.replace(model)
