"""Reading sources: every known format, every error with its place, good records beside unreadable ones."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from pasta_jax.data import sources
from pasta_jax.data.pairs import Pair, Unreadable, split_of
from pasta_jax.data.sharegpt import convert, whole_records
from pasta_jax.data.sources import Filter, known_preferences, read, refuse_for_training, select, separated
from pasta_jax.data.turns import stands_alone
from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from tests.helpers.malformed import LINES
from tests.helpers.requires import requires_data

GOOD = b'{"instruction": "why", "output": "because"}'
LIMITS = Filter((1, 9), (1, 9), drop_duplicates=True, drop_evaluation=False)


def texts(pairs: Iterable[Pair]) -> list[tuple[str, str, str]]:
    pairs = list(pairs)
    assert all(isinstance(pair, Pair) for pair in pairs), pairs
    return [(pair.system, pair.instruction, pair.response) for pair in pairs]


def write(path: Path, *rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_every_format(tmp_path):
    turns = [("system", "Be brief."), ("human", "why"), ("gpt", "because"), ("human", "and?"), ("gpt", "…")]
    spoken = [{"from": name, "value": text, "weight": None} for name, text in turns]
    chat = [("developer", "Be brief."), ("user", "why"), ("assistant", "because"), ("tool", "7")]
    rules = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    path = write(
        tmp_path / "all.jsonl",
        {"instruction": "why", "output": "because"},
        {"instruction": "why", "input": "", "output": "because", "generator": "x"},
        {"instruction": "why", "input": "now", "output": "because"},
        {"id": "1", "conversations": spoken[1:]},
        {"conversations": spoken},
        {"messages": [{"role": "user", "content": "why"}, {"role": "assistant", "content": "because"}]},
        {"id": "x", "system_prompt": "Be brief.", "question": "why", "response": "because"},
        {"conversations": spoken[1:2], "chosen": spoken[2], "rejected": spoken[4]},
        {"key": 1, "prompt": "why", **rules},
        {"prompt": "why", "text": "because", **rules},
        {"instruction": "why", "output": "because", "system": "Be brief."},
        {"conversations": spoken[1:], "system": "Be brief."},
        {"conversations": spoken, "system": "Be long."},
        {"instruction": "why", "output": "because", "system": None},
        {"messages": [{"role": role, "content": text} for role, text in chat]},
        {"messages": [{"role": role, "content": text, "tool_calls": []} for role, text in chat[1:]]},
        {"messages": [{"role": role, "content": [{"type": "text", "text": t} for t in text]} for role, text in chat]},
        {"instruction": "", "input": "why", "output": "because", "history": []},
        {"instruction": "and?", "output": "…", "history": [["why", "because"], ["so?", "so."]]},
    )
    plain, brief = ("", "why", "because"), ("Be brief.", "why", "because")
    expected = [plain, plain, ("", "why\n\nnow", "because"), plain, brief, plain, brief, plain, ("", "why", ""), plain]
    expected += [brief, brief, brief, plain, brief, plain, brief, plain, plain]
    pairs = list(read(path))
    assert texts(pairs) == expected
    assert {pair.source for pair in pairs} == {"all.jsonl"}
    assert len({pair.id for pair in pairs}) == 4


def test_a_list_of_records_and_a_parquet_file(tmp_path):
    rows = [{"instruction": "why", "output": "because"}, {"instruction": "how", "output": "so"}]
    (tmp_path / "list.json").write_text(json.dumps(rows, indent=2))
    (tmp_path / "list.JSONL").write_text(json.dumps(rows, indent=2))
    (tmp_path / "lines.json").write_bytes(b"\xef\xbb\xbf" + GOOD + b"\n")
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    turns = [{"from": "human", "value": "why"}, {"from": "gpt", "value": "because"}]
    parquet.write_table(pa.Table.from_pylist([{"conversations": turns}]), tmp_path / "turns.parquet")
    for name in ("list.json", "list.JSONL"):
        assert texts(read(str(tmp_path / name))) == [("", "why", "because"), ("", "how", "so")]
    assert texts(read(str(tmp_path / "lines.json"))) == [("", "why", "because")]
    assert texts(read(str(tmp_path / "rows.parquet"))) == [("", "why", "because"), ("", "how", "so")]
    assert texts(read(str(tmp_path / "turns.parquet"))) == [("", "why", "because")]


def test_commas_separate_sources_but_not_the_path_of_a_file(tmp_path):
    inside = tmp_path / "a,b"
    inside.mkdir()
    path = write(inside / "own.jsonl", {"instruction": "Q?", "output": "A."})
    assert separated(path) == [path]
    assert separated("alpaca_rows, preferences") == ["alpaca_rows", "preferences"]


def test_a_tfds_dataset(tmp_path, monkeypatch):
    import numpy as np
    import tensorflow_datasets as tfds

    class Questions(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        name = "questions"
        code_path = None

        def _info(self):
            turn = tfds.features.Sequence({"from": tfds.features.Text(), "value": tfds.features.Text()})
            texts = tfds.features.Sequence(tfds.features.Text())
            fields = {"conversations": turn, "n": np.int32, "notes": {"a": texts, "b": texts}}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(fields))

        def _split_generators(self, _):
            turns = {"from": ["human", "gpt"], "value": ["why", "é"]}
            return {"train": [("1", {"conversations": turns, "n": 1, "notes": {"a": ["x", "y"], "b": ["z"]}})]}

        def _generate_examples(self):
            raise AssertionError("the split has its examples")

    Questions(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    assert texts(read("tfds:questions/train")) == [("", "why", "é")]
    for wrong in ("tfds:questions/test", "tfds:no_such/train", "tfds:questions"):
        with pytest.raises(PastaError, match=wrong):
            list(read(wrong))


@pytest.mark.parametrize(("what", "line", "reason"), LINES, ids=[what for what, _, _ in LINES])
def test_a_malformed_line_is_located_and_its_neighbours_survive(tmp_path, what, line, reason):
    path = tmp_path / "data.jsonl"
    path.write_bytes(GOOD + b"\n" + line + b"\n" + GOOD)
    before, bad, after = read(str(path))
    assert texts([before, after]) == [("", "why", "because")] * 2
    assert isinstance(bad, Unreadable)
    assert (bad.place, bad.reason) == ("data.jsonl: line 2", reason)
    assert "\n" not in bad.detail


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.json", b"[" + GOOD + b',{"instruction": "wh'),
        ("deep.json", b"[" * 200_000),
        ("bytes.json", b'["\xff"]'),
        ("no.parquet", b"PAR1 no PAR1"),
        ("data.csv", b""),
        ("absent.jsonl", None),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PastaError, match=name) as caught:
        list(read(str(tmp_path / name)))
    assert "\n" not in str(caught.value)


def test_a_damaged_page_of_a_parquet_file_is_told_with_its_reason(tmp_path):
    path, rows = tmp_path / "a.parquet", [{"instruction": f"why {n}", "output": "because"} for n in range(999)]
    parquet.write_table(pa.Table.from_pylist(rows), path, compression="snappy")
    content = bytearray(path.read_bytes())
    content[40:80] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(PastaError, match=r"a\.parquet: .*(?i:corrupt|snappy|page)"):
        list(read(str(path)))


def test_a_date_that_python_cannot_hold_is_told_with_its_file(tmp_path):
    column = pa.array([2**61], pa.timestamp("us"))
    parquet.write_table(pa.table({"instruction": ["why"], "output": ["so"], "at": column}), tmp_path / "a.parquet")
    with pytest.raises(PastaError, match=r"a\.parquet: .*date"):
        list(read(str(tmp_path / "a.parquet")))


def test_a_list_that_is_cut_off_keeps_its_whole_records():
    text = json.dumps([{"a": "]},"}, {"b": [1]}, {"c": 2}], indent=1)
    for cut in (-1, -2, -4, -8):
        assert list(whole_records(text[:cut])) == [{"a": "]},"}, {"b": [1]}, {"c": 2}][: 3 if cut > -3 else 2], cut
    assert list(whole_records("[")) == []


@requires_data
def test_sharegpt_is_converted_to_the_pinned_file(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "SHARE", tmp_path)
    convert()
    assert packages.path("sharegpt") == tmp_path / "sharegpt.jsonl"


def test_selection_counts_every_pair_left_out(tmp_path):
    rows = [("why is it", "so"), ("Why  is it ", "or so"), ("a " * 10, "so"), ("why", "so " * 10), ("why", "so")]
    pairs = read(write(tmp_path / "a.jsonl", *({"instruction": a, "output": b} for a, b in rows)))
    selection, left_out = select(pairs, LIMITS)
    assert [pair.instruction for pair in selection] == ["why is it", "why"]
    assert [(pair.origin, reason) for pair, reason in left_out] == [
        ("a.jsonl: line 2", "duplicate prompt"),
        ("a.jsonl: line 3", "prompt length"),
        ("a.jsonl: line 4", "response length"),
    ]


def test_of_several_answers_to_a_prompt_the_same_counts_once():
    pairs = [Pair.of("", "why", answer, "") for answer in ("so", "thus", "so")]
    _, left_out = select(pairs, dataclasses.replace(LIMITS, drop_duplicates=False))
    assert left_out == [(pairs[2], "duplicate answer")]


def test_splits_depend_on_the_prompt_alone():
    pairs = [Pair(str(n), "", f"question {n}", f"answer {n}", "") for n in range(4000)]
    splits = [split_of(pair, 10) for pair in pairs]
    assert 320 < splits.count("validation") < 480
    assert splits == [split_of(Pair("", "", f" Question\n{n}", "other", "other"), 10) for n in range(4000)]
    assert splits == [split_of(dataclasses.replace(pair, system="Be brief."), 10) for pair in pairs]
    assert {split_of(pair, 0) for pair in pairs} == {"train"}


def test_evaluation_data_is_refused_for_training():
    refuse_for_training(["sharegpt", "my.jsonl"])
    with pytest.raises(PastaError, match="alpaca_eval, mt_bench: reserved for evaluation"):
        refuse_for_training(["sharegpt", "mt_bench", "alpaca_eval"])


@requires_data
def test_packaged_data():
    counts = {source: [isinstance(item, Pair) for item in read(source)].count(True) for source in sources.PACKAGED}
    evaluation = {"alpaca_eval": 805, "mt_bench": 80, "ifeval": 541}
    assert counts == {"sharegpt": 9_501, "alpaca_rows": 999, "preferences": 300} | evaluation
    pair = next(pair for pair in read("alpaca_eval") if isinstance(pair, Pair))
    assert all(chosen != rejected for _, chosen, rejected in known_preferences())
    second = "Rewrite your previous response. Start every sentence with the letter A."  # MT-bench's first second turn
    system = "You are an AI assistant."
    copies = [
        Pair("", system, text, "so", "mine")
        for text in (pair.instruction.upper(), pair.instruction.strip("?.") + " !", second)
    ]
    _, left_out = select(copies, Filter((1, 99), (1, 9), True, drop_evaluation=True))
    assert left_out == [(copy, "evaluation prompt") for copy in copies]


def test_known_preferences_compare_the_answers_that_end_a_conversation(tmp_path, monkeypatch):
    def turn(name: str, text: str) -> dict:
        return {"from": name, "value": text}

    ends = {"chosen": turn("gpt", "good"), "rejected": turn("gpt", "bad")}
    longer = [turn("human", "first"), turn("gpt", "same"), turn("human", "last")]
    rows = [
        {"conversations": [turn("system", "Be brief."), turn("human", "why")], **ends},
        {"conversations": longer, **ends},
        {"conversations": longer, "chosen": turn("gpt", "good")},
        {"conversations": longer[:2], **ends},
        {"conversations": [], **ends},
    ]
    (tmp_path / "pairs.json").write_text(json.dumps(rows))
    monkeypatch.setattr(packages, "path", lambda name: tmp_path / "pairs.json")
    assert known_preferences() == [("why", "good", "bad"), ("last", "good", "bad")]


def turns(*texts: str) -> dict:
    """A conversation whose turns alternate between a person and a model."""
    return {"conversations": [{"from": ("human", "gpt")[n % 2], "value": text} for n, text in enumerate(texts)]}


def test_later_turns_are_used_where_their_question_stands_alone(tmp_path):
    spoken = [("user", "y"), ("assistant", "b"), ("user", "What are the largest lakes of France?")]
    spoken = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in spoken]
    path = write(
        tmp_path / "a.jsonl",
        turns("Hi there", "Hello.", "What are the largest rivers of France?", "Loire.", "Why is that so?", "So."),
        turns("x", "Loire.", "List five ways to relax", "a"),
        {"conversations": [1, {"from": 3, "value": "x"}, {"from": "human", "value": None}]},
        {"conversations": "no"},
        {"conversations": [{"from": ["human"], "value": "x"}] * 3},
        {"messages": [*spoken, {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "1"}]}]},
    )
    pairs = [item for item in sources.read(str(path), later_turns=True) if isinstance(item, Pair)]
    assert [(pair.instruction, pair.response, pair.origin) for pair in pairs] == [
        ("Hi there", "Hello.", "a.jsonl: line 1"),
        ("What are the largest rivers of France?", "Loire.", "a.jsonl: line 1, turn 3"),
        ("x", "Loire.", "a.jsonl: line 2"),
        ("List five ways to relax", "a", "a.jsonl: line 2, turn 3"),
        ("y", "b", "a.jsonl: line 6"),
    ]
    assert [item.instruction for item in sources.read(str(path)) if isinstance(item, Pair)] == ["Hi there", "x", "y"]


def test_a_piece_of_a_conversation_begins_with_a_question_that_stands_alone(tmp_path, monkeypatch):
    """ShareGPT cuts long conversations; elsewhere, such an id may be a plain count."""
    rivers, more = turns("What are the largest rivers of France?", "Loire."), turns("And why is that so?", "So.")
    rows = [more | {"id": "QWJhYvA_0"}, more | {"id": "QWJhYvA_3"}, rivers | {"id": "QWJhYvA_12"}, more]
    path = write(tmp_path / "a.jsonl", *rows)
    assert len(texts(read(path))) == 4
    monkeypatch.setattr(packages, "path", lambda name: Path(path))
    items = list(read("sharegpt"))
    assert [type(item) for item in items] == [Pair, Unreadable, Pair, Pair]
    assert (items[1].place, items[1].reason) == ("sharegpt: line 2", "a conversation must begin with its first turn")


def test_a_system_message_holds_for_later_turns(tmp_path):
    def row(system: object) -> dict:
        asked = turns("Hi there", "Ahoy.", "What are the largest seas of the world?", "Arr.")["conversations"]
        return {"conversations": [{"from": "system", "value": system}, *asked]}

    beside = {"conversations": row("")["conversations"][1:], "system": "Talk like a pirate."}
    path = write(tmp_path / "a.jsonl", row("Talk like a pirate."), row(7), row("\0"), beside)
    pairs = [item for item in sources.read(str(path), later_turns=True) if isinstance(item, Pair)]
    assert {pair.system for pair in pairs} == {"Talk like a pirate."}
    assert [pair.response for pair in pairs] == ["Ahoy.", "Arr."] * 2


@pytest.mark.parametrize(
    ("question", "alone"),
    [
        ("What are the main causes of inflation?", True),
        ("Give me 10 names for a bakery", True),
        ("Can you give me an alternative?", False),
        ("How does this compare to Spain?", False),
        ("What are some more ideas for it?", False),
        ("ok, list the capitals of Europe", False),
        ("Rewrite it in a formal tone please", False),
        ("Why?", False),
    ],
)
def test_questions_that_refer_to_earlier_turns(question, alone):
    assert stands_alone(question) == alone
