"""Ids of awkward texts, and of conversations with blanks in front, beside `tokenizers` and llama.cpp."""

import json

import pytest
import tokenizers

from pasta_jax.files import packages
from pasta_jax.tokenizers.tokenizer import load_tokenizer
from tests import ids
from tests.helpers.requires import requires_dev, requires_qwen
from tests.helpers.texts import CONVERSATIONS, TEMPLATED
from tests.helpers.tiny_tokenizers import TINY


@requires_dev("cyllama")
@pytest.mark.parametrize(
    "name",
    [
        "qwen2.gguf", "neox.json", "neox.gguf", "letters.json", "letters.gguf", "prefixed.gguf", "gemma.json",
        "prefixed.json", "first.json",
    ],
)  # fmt: skip
def test_texts_by_chance_have_the_ids_of_other_programs(name, tmp_path):
    """`python -m tests.ids` compares 3,000 texts and more tokenizers."""
    (tmp_path / name).write_bytes(TINY[name]())
    assert ids.differing(tmp_path / name, ids.awkward(200)) == []


def test_added_words_are_found_as_their_flags_say(tmp_path):
    path, text = tmp_path / "letters.json", "The capital, apital Capital; 東京都 apital"
    spec = json.loads(TINY["letters.json"]())
    for flags, count in (({}, 5), ({"single_word": True}, 2), ({"rstrip": True}, 0)):
        spec["added_tokens"] = [one if one["special"] else one | flags for one in spec["added_tokens"]]
        path.write_text(json.dumps(spec))
        ours, direct = load_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))
        added = {one["id"] for one in spec["added_tokens"]}
        assert sum(id in added for id in ours.encode(text)) == count
        assert ours.decode(ours.encode(text)) == text
        assert not count or ours.encode(text) == direct.encode(text, add_special_tokens=False).ids
        spec = json.loads(ours.vocabulary.content())  # the flags are kept
        assert all(one | flags == one for one in spec["added_tokens"] if not one["special"])
        spec = json.loads(TINY["letters.json"]())


def test_whole_words_are_found_where_bytes_stand_for_rare_characters(tmp_path):
    spec, path = json.loads(TINY["gemma.json"]()), tmp_path / "gemma.json"
    spec["model"]["vocab"]["zap"] = id = spec["model"]["vocab"].pop("<unused0>")
    [word] = (one for one in spec["added_tokens"] if one["id"] == id)
    word |= {"content": "zap", "single_word": True}
    path.write_text(json.dumps(spec))
    ours, direct = load_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))
    text = "zapped, zap; zap"
    assert ours.encode(text) == direct.encode(text, add_special_tokens=False).ids
    assert ours.encode(text).count(id) == 2


@requires_qwen
@requires_dev("cyllama")
def test_texts_by_chance_have_the_ids_of_llama_cpp_in_a_whole_model():
    assert ids.differing(packages.path("qwen2_5_coder_1_5b"), ids.awkward(200)) == []


@pytest.mark.parametrize("name", ["gemma.json", "prefixed.json", "first.json"])
def test_conversations_have_the_ids_of_tokenizers(name, tmp_path):
    (tmp_path / name).write_bytes(TINY[name]())
    ours, direct = load_tokenizer(tmp_path / name), tokenizers.Tokenizer.from_file(str(tmp_path / name))
    for messages, whole in zip(CONVERSATIONS, TEMPLATED["gemma"], strict=True):
        if "<" not in messages[0][1]:  # the library finds marks in it
            assert ours.chat(messages) == direct.encode(whole, add_special_tokens=False).ids
