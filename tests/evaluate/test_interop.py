"""Files of AlpacaEval and MT-bench: written as their tools read them, and a win rate as alpaca_eval computes it."""

import json
from types import SimpleNamespace

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.evaluate.interop import model_outputs, mt_bench_answers, read_annotations, refuse_others, win_rate_of
from tests.evaluate.test_figures import answer


def annotations(preferences: list, folder) -> object:
    """A file in the layout that alpaca_eval 0.6.6 writes."""
    rows = [
        {
            "instruction": f"Question {number}", "output_1": "abcd", "generator_1": "base", "dataset": "koala",
            "output_2": "ab", "generator_2": "ours", "annotator": "stub", "preference": preference,
            "preference_raw_completion": {"text": "m"}, "preference_price_per_example": 2e-05,
        }
        for number, preference in enumerate(preferences)
    ]  # fmt: skip
    path = folder / "annotations.json"
    path.write_text(json.dumps(rows))
    return path


def test_the_win_rate_of_annotations(tmp_path):
    """As `alpaca_eval evaluate --fn_metric get_winrate` has it: 1 and 2 are losses and wins, 0 and 1.5 draws."""
    result = win_rate_of(read_annotations(annotations([1, 2, 1.5, 0.0, 1.0985, None, float("nan")], tmp_path)))
    values = [0, 1, 0.5, 0.5, 0.0985]
    assert result.judged == 5
    assert result.win_rate == pytest.approx(100 * sum(values) / 5, abs=1e-9)
    mean = sum(values) / 5
    deviation = (sum((value - mean) ** 2 for value in values) / 4) ** 0.5
    assert result.standard_error == pytest.approx(100 * deviation / 5**0.5, abs=1e-9)
    assert (result.generator, result.reference, result.length_ratio) == ("ours", "base", 0.5)


def test_annotations_of_other_answers_are_refused(tmp_path):
    path = annotations([1, 2], tmp_path)
    path.write_text(path.read_text().replace("ours", "pasta_jax-model").replace("base", "pasta_jax-baseline"))
    rows = read_annotations(path)

    def check(text: str, prompt: str = "Question 1") -> None:
        refuse_others("a.json", rows, {"model": [SimpleNamespace(prompt=prompt, text=text)]})

    check("ab")
    check("other", "Not judged")
    refuse_others("a.json", rows, {"untagged": [SimpleNamespace(prompt="Question 1", text="other")]})
    with pytest.raises(PastaError, match=r"a\.json: row 1: pasta_jax-model answers 'Question 1' otherwise here; judge"):
        check("other")


def test_annotations_that_cannot_be_read_are_refused(tmp_path):
    rows = [dict(instruction="a", output_1="b", output_2="c", generator_2=name) for name in "de"]
    (tmp_path / "annotations.json").write_text(json.dumps(rows))
    with pytest.raises(PastaError, match=r"annotations\.json: of several pairs of systems"):
        read_annotations(tmp_path / "annotations.json")
    with pytest.raises(PastaError, match=r"annotations\.json: has no rows"):
        read_annotations(annotations([], tmp_path))
    with pytest.raises(PastaError, match="no row has a preference"):
        win_rate_of(read_annotations(annotations([None], tmp_path)))
    with pytest.raises(PastaError, match=r"preference 3\.0 of 'Question 0': not from 0 to 2"):
        win_rate_of(read_annotations(annotations([3.0], tmp_path)))


def test_outputs_for_alpaca_eval():
    rows = model_outputs([answer(0, "Why? \n", text="x"), answer(1, "How?", text="")], ["koala", ""], "ours")
    assert [row["instruction"] for row in rows] == ["Why? \n", "How?"]  # joined to the reference by exact text
    assert {row["generator"] for row in rows} == {"ours"}
    assert all(isinstance(value, str) for row in rows for value in row.values())
    assert rows[0]["dataset"] == "koala"


def test_answers_to_mt_bench():
    turns = [[answer(0, text="b1"), answer(0, text="b2")], [answer(1, text="a1"), answer(1, text="a2")]]
    lines = mt_bench_answers(turns, [82, 81], "ours")
    assert [(line["question_id"], line["model_id"]) for line in lines] == [(81, "ours"), (82, "ours")]
    assert lines[0]["choices"] == [{"index": 0, "turns": ["a1", "a2"]}]
    assert len({line["answer_id"] for line in lines}) == 2
