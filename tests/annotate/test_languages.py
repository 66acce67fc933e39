"""Answers that list things fork in every language, whether or not it puts blanks between words."""

import json

import pytest

from configs import annotate as configs
from pasta_jax.annotate import pipeline
from pasta_jax.annotate.structural import annotate
from pasta_jax.data.records import read_records
from pasta_jax.lang.program import Chunk, Program, Sync
from pasta_jax.runs.settings import changed
from tests.annotate.languages import ANSWERS, annotated

MARKERS = (
    [("1、", "2、", "3、"), ("一、", "二、", "三、"), ("（1）", "（2）", "（3）"), ("（一）", "（二）", "（三）")]
    + [("1.", "2.", "3."), ("１．", "２．", "３．"), ("①", "②", "③"), ("(1) ", "(2) ", "(3) ")]
    + [(bullet,) * 3 for bullet in ("・", "•", "• ", "- ", "●", "\u3000・", "▪\ufe0f ", "◆\ufe0f")]
)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_list_becomes_a_forked_record_with_the_same_text(name):
    question, answer, topics = ANSWERS[name]
    record = annotated(question, answer)
    assert record.topics == topics
    program = Program.parse(record.program)
    assert program.strip() == answer
    assert isinstance(program.parts[-2], Sync), "the summary waits for the chunks"
    assert record.speedup > 1.1


@pytest.mark.parametrize("markers", MARKERS, ids=lambda markers: markers[0].strip())
def test_every_kind_of_marker_begins_an_item(markers):
    question, answer, topics = ANSWERS["chinese"]
    for number, marker in enumerate(markers, 1):
        answer = answer.replace(f"{number}、", marker)
    assert annotated(question, answer).topics == topics


def test_lists_under_numbers_of_another_kind_fork():
    _, answer, topics = ANSWERS["chinese"]
    items = answer.splitlines()[2:5]
    text = "\n".join(
        ["建议：", "一、睡眠", *items[:2], "二、饮食", items[2].replace("3", "1"), items[0].replace("1", "2")]
    )
    assert annotated("健康", text).topics == [*topics, topics[0]]


def test_sentences_that_are_numbered_and_items_that_refer_to_others():
    cities = (
        "北京是首都，有故宫和长城等许多名胜古迹。",
        "上海是经济中心，有外滩和许多高楼大厦。",
        "成都以美食闻名，吸引了很多游客。",
    )
    first, second, third = cities
    sentences = f"首先，{first}其次，{second}最后，{third}"
    assert len(annotated("介绍城市", sentences).topics) == 3
    assert annotate("写一个故事", sentences) == sentences
    steps = f"按照以下步骤：\n1、{first}\n2、然后，{second}\n3、最后，{third}"
    assert annotated("介绍城市", steps).topics == []
    _, answer, _ = ANSWERS["chinese"]
    more = "\n4、这些习惯也适用于午睡：午睡应该短一些，而且不要太晚。"
    more += "\n5、适量运动：白天多走路可以让人在夜里睡得更深更安稳。\n\n总之"
    parts = Program.parse(annotated("怎样睡得更好？", answer.replace("\n\n总之", more)).program).parts
    at = [n for n, part in enumerate(parts) if isinstance(part, Chunk)][3]
    assert Sync() in parts[at - 2 : at]


def test_pairs_of_five_languages_are_annotated_into_records(tmp_path):
    source = tmp_path / "pairs.jsonl"
    rows = [{"instruction": question, "output": answer} for question, answer, _ in ANSWERS.values()]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = changed(configs.local(), source=str(source), max_tokens=9999, model={"preset": "toy"}, dataset=False)
    pipeline.run(settings, tmp_path / "out")
    records = list(read_records(tmp_path / "out" / "records.jsonl"))
    assert {record.response: record.topics for record in records} == {a: topics for _, a, topics in ANSWERS.values()}
