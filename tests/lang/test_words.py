"""Words in scripts with and without blanks between them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.lang.program import MAX_TOPIC_WORDS, Chunk, Program, Sync, Text, check
from pasta_jax.lang.words import first_words, plain_words, single_words, unspaced, words
from tests.helpers.examples import examples

LATIN = "Schlafe um zehn - oder früher!"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LATIN, LATIN.split()),
        ("每天同一时间睡觉。", ["每天", "同一", "时间", "睡觉。"]),
        ("iPhone手机 很好用，ok", ["iPhone", "手机", "很好", "用，", "ok"]),
        ("**固定した起床時間**：", ["**固定", "した", "起床", "時間**："]),
        ("นอนให้เป็นเวลา ทุกวัน", ["นอนใ", "ห้เป็น", "เวลา", "ทุกวัน"]),
        ("", []),
        (" \n。 ", ["。"]),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


@examples(300)
@given(st.text(st.sampled_from("ab .,-\n固定のเป็ນ")))
def test_every_character_that_is_no_blank_is_in_one_word(text):
    assert "".join(words(text)) == "".join(text.split())
    assert first_words(text, 10**6) == " ".join(text.split())
    assert len(words(first_words(text, 2))) == min(len(words(text)), 2)
    if not unspaced(text):
        assert words(text) == text.split()


def test_words_without_punctuation():
    assert plain_words("Don't: stop-it!") == ["Don", "t", "stop", "it"]
    assert plain_words("好，很好。") == ["好", "很好"]
    assert single_words("ok，很好 นี่") == ["ok", "很", "好", "นี่"]
    assert plain_words("नींद, पानी।") == single_words("नींद, पानी।") == ["नींद", "पानी"]
    assert plain_words("שָׁלוֹם, مُحَمَّد") == single_words("שָׁלוֹם, مُحَمَّد") == ["שָׁלוֹם", "مُحَمَّد"]


def test_long_texts_of_any_kind_take_linear_time():
    began = time.process_time()
    for text in ("-" * 100_000, "-固" * 50_000, "ก" + "ิ" * 100_000, "a-" * 50_000 + "固"):
        words(text), plain_words(text), single_words(text)  # an ambiguous pattern would take minutes
    assert time.process_time() - began < 5


def test_topics_and_chunks_are_limited_in_all_scripts():
    def errors(topic, text):
        return [error.rule for error in check(Program((Chunk(topic, 1, text), Sync(), Text("."))).render())]

    assert errors("固定作息", "每天同一时间睡觉。" * 2) == []
    assert errors("กินให้เป็นเวลา", "กินข้าวให้ตรงเวลาทุกวันเพื่อสุขภาพ") == []
    assert errors("固定的作息时间", "每天同一时间睡觉。" * 2) == [f"a topic has at most {MAX_TOPIC_WORDS} words"]
    assert errors("固定", "每天睡觉。") == ["a chunk has at least 5 words"]
