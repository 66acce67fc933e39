"""Runs interrupted anywhere end as if uninterrupted; the folder of another run is never continued."""

import dataclasses
import json
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from pasta_jax.annotate import run
from pasta_jax.annotate.results import Skipped, write_results
from pasta_jax.annotate.run import Unanswered, collect_answers
from pasta_jax.annotate.verify import TEXT_CHANGED, verify
from pasta_jax.data.pairs import Pair, Unreadable, id_of
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.llm.cache import Cost
from pasta_jax.progress import Progress
from pasta_jax.toy.task import problems
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.weights.load import export_model
from pasta_jax.weights.model import Model
from tests.helpers.forked import Forked, command
from tests.helpers.models import TINY, random_params
from tests.helpers.traces import Chatty

PAIRS = [Pair(f"id{n}", "", f"what {n}", f"answer {n} é\n", "mine") for n in range(12)]
ABOUT = {"annotator": "by hand", "code": "1"}


class Interrupted(Exception):
    pass


class Script:
    """An annotator that answers in a random order and may be interrupted."""

    def __init__(self, stop_after: int = 10**9, seed: int = 0):
        self.stop_after, self.seed = stop_after, seed
        self.answered: list[int] = []

    def __call__(self, numbers: list[int], progress: Progress):
        order = list(numbers)
        random.Random(self.seed).shuffle(order)
        for count, number in enumerate(order):
            if count == self.stop_after:
                raise Interrupted
            self.answered.append(number)
            yield number, {"text": PAIRS[number].response}


ANSWERS = [{"text": pair.response} for pair in PAIRS]


def test_answers_arrive_in_any_order_and_are_returned_in_order_of_the_pairs(tmp_path, capsys):
    assert collect_answers(tmp_path / "a/b", ABOUT, PAIRS, Script()) == ANSWERS
    assert "annotating: 12 of 12" in capsys.readouterr().err
    assert collect_answers(tmp_path / "a/b", ABOUT, PAIRS, pytest.fail) == ANSWERS


def test_no_pair_is_annotated_twice(tmp_path):
    answered: list[int] = []
    for seed, stop in enumerate((0, 1, 5, 2)):
        script = Script(stop, seed)
        with pytest.raises(Interrupted):
            collect_answers(tmp_path, ABOUT, PAIRS, script)
        answered += script.answered
    script = Script(seed=9)
    assert collect_answers(tmp_path, ABOUT, PAIRS, script) == ANSWERS
    assert sorted(answered + script.answered) == list(range(12))


def test_a_file_cut_off_at_any_byte_is_resumed(tmp_path):
    collect_answers(tmp_path, ABOUT, PAIRS[:3], Script())
    whole = (tmp_path / run.PROGRESS).read_bytes()
    for length in range(len(whole)):
        (tmp_path / run.PROGRESS).write_bytes(whole[:length])
        assert collect_answers(tmp_path, ABOUT, PAIRS[:3], Script()) == ANSWERS[:3]
        assert sorted((tmp_path / run.PROGRESS).read_bytes().split(b"\n")) == sorted(whole.split(b"\n"))


def test_a_folder_of_another_run_is_refused(tmp_path):
    collect_answers(tmp_path, ABOUT, PAIRS, Script())
    for about, pairs, changed in ((ABOUT | {"code": "2"}, PAIRS, "code"), (ABOUT, PAIRS[1:], "pairs")):
        with pytest.raises(PastaError, match=f"a run with a different {changed}"):
            collect_answers(tmp_path, about, pairs, Script())
    assert fingerprints.of_code(run) != fingerprints.of_code(sys.modules[__name__])


def test_damage_and_a_second_process_are_refused(tmp_path):
    collect_answers(tmp_path, ABOUT, PAIRS, Script())
    path = tmp_path / run.PROGRESS
    whole = path.read_bytes()
    for line in (b"[99, {}]", b"[1]", b'{"a": 1}', b"[0, 1]", b"\0\0"):
        path.write_bytes(whole + line + b"\n")
        with pytest.raises(PastaError, match=r"line 14.*; delete that line to have it redone"):
            collect_answers(tmp_path, ABOUT, PAIRS, Script())
    path.write_bytes(whole)

    def meanwhile(numbers: list[int], progress: Progress):
        with pytest.raises(PastaError, match="another process is writing"):
            collect_answers(tmp_path / "b", ABOUT, PAIRS, Script())
        yield from Script()(numbers, progress)

    collect_answers(tmp_path / "b", ABOUT, PAIRS, meanwhile)
    (tmp_path / "file").touch()
    with pytest.raises(PastaError, match="file"):
        collect_answers(tmp_path / "file", ABOUT, PAIRS, Script())


def test_an_annotator_that_ends_early_is_reported(tmp_path):
    with pytest.raises(PastaError, match="7 pairs have no answer yet"):
        collect_answers(tmp_path, ABOUT, PAIRS, lambda numbers, _: ((n, {"text": ""}) for n in numbers[:5]))


def test_an_unanswered_pair_is_not_stored_and_is_asked_again(tmp_path):
    down = Unanswered("no connection", "refused")

    def partly(numbers: list[int], progress: Progress):
        for number, answer in Script()(numbers, progress):
            yield number, down if number in (3, 7) else answer

    answers = collect_answers(tmp_path, ABOUT, PAIRS, partly)
    assert answers == [down if number in (3, 7) else answer for number, answer in enumerate(ANSWERS)]
    assert len((tmp_path / run.PROGRESS).read_text().splitlines()) == 1 + 10
    script = Script()
    assert collect_answers(tmp_path, ABOUT, PAIRS, script) == ANSWERS
    assert sorted(script.answered) == [3, 7]


def test_the_summary_counts_everything_once(tmp_path):
    verdicts = [
        verify(p, {"text": p.response + "x" * (n < 3)}, Chatty(), 900, "by hand", "train") for n, p in enumerate(PAIRS)
    ]
    unreadable = [Unreadable("mine: line 4", "a record must be JSON")]
    skipped = Skipped(unreadable, Counter({"duplicate prompt": 2}), Counter({"timeout": 3}))
    cost = Cost(7, 1_000_000, 200_000, None)
    summary = write_results(tmp_path, verdicts, skipped, "by hand", "mine", "bytes", cost)
    assert (summary.read, summary.annotated, summary.kept) == (18, 12, 9)
    assert summary.unanswered == {"timeout": 3}
    assert "all runs together: 7 requests, 1,000,000 tokens in, 200,000 out; price not set" in summary.text()
    assert summary.refused == {TEXT_CHANGED: 3}
    assert summary.unreadable == {"a record must be JSON": 1}
    assert json.loads((tmp_path / "summary.json").read_text()) == summary.json()
    expected = f"refused: {TEXT_CHANGED}: 3\n  unanswered: timeout: 3\nkept 9 records\nwith a fork 0 (0.0%)"
    assert expected in summary.text()
    refused = [json.loads(line) for line in (tmp_path / "refused.jsonl").read_text().splitlines()]
    assert [item["place"] for item in refused] == ["mine: line 4", *["source, line 2, column 1"] * 3]
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 9
    assert "| records | 9 |" in (tmp_path / "statistics.md").read_text()
    assert not list(tmp_path.glob("*.part"))


# Real processes, killed.

RESULTS = ("records.jsonl", "refused.jsonl", "summary.json", "statistics.md", "chart.svg")


def source(folder: Path) -> Path:
    """Answers with lists, and some that are refused or can't be read."""
    rng = random.Random(3)
    lines = []
    for n in range(800):
        items = "\n".join(
            f"{i + 1}. Topic{i}: {' '.join(rng.choices('abc def ghi', k=12))} number {n}." for i in range(6)
        )
        lines.append(json.dumps({"instruction": f"Give me a list of things, {n}", "output": f"Here it is:\n\n{items}"}))
    lines[7:7] = ["{", json.dumps({"instruction": "Too long for the pool?", "output": "éèêë " * 340})]
    (folder / "lists.jsonl").write_text("\n".join(lines))
    return folder / "lists.jsonl"


def start(variant: str, output: Path, *options: str) -> Forked:
    options = (*options, "--config.max_tokens=1700", "--config.dataset=False", f"--output={output}")
    return command(output.parent, "annotate", f"--config=configs/annotate.py:{variant}", *options)


def killed_twice_or_not_at_all(variant: str, tmp_path: Path, *options: str) -> dict:
    """Two runs of a variant, one of them killed in the first and in the last third; the summary of both."""
    out = start(variant, tmp_path / "whole", *options).finish()
    sizes = []
    for share in (0.2, 0.7):
        target = share * (tmp_path / "whole" / run.PROGRESS).stat().st_size
        process, file = start(variant, tmp_path / "killed", *options), tmp_path / "killed" / run.PROGRESS
        while not (file.exists() and file.stat().st_size > target):
            assert process.poll() is None, process.errors()
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.finish(-signal.SIGKILL)
        sizes.append(file.stat().st_size)
        assert not (tmp_path / "killed/records.jsonl").exists()
    assert sizes[0] < sizes[1] < (tmp_path / "whole" / run.PROGRESS).stat().st_size
    last = start(variant, tmp_path / "killed", *options)
    assert last.finish().replace("/killed/", "/whole/") == out
    for name in RESULTS:
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    return json.loads((tmp_path / "whole/summary.json").read_text())


@pytest.mark.slow
def test_structure_killed_twice_ends_with_the_same_files(tmp_path):
    options = (f"--config.source={source(tmp_path)}", "--config.drop_evaluation=False", "--config.model.preset=toy")
    summary = killed_twice_or_not_at_all("sharegpt_structure", tmp_path, *options)
    assert (summary["kept"], len(summary["unreadable"]), len(summary["refused"])) == (800, 1, 1)
    assert summary["statistics"]["with_fork"] == 800


@pytest.mark.slow
def test_likelihood_killed_twice_ends_with_the_same_files(tmp_path):
    """With a tiny model of random weights, which finds half of all chunks needed."""
    tokenizer = toy_tokenizer()
    config = dataclasses.replace(TINY, vocab=tokenizer.model_vocab, context=2048)
    params = random_params(config, 1, scale=1.0)
    (tmp_path / "model").mkdir()
    export_model(Model("tiny", config, params, tokenizer), tmp_path / "model")
    problems_ = {problem.instruction: problem for problem in problems(1, 0, 150, "medium")}.values()
    with (tmp_path / "records.jsonl").open("w") as file:
        for problem in problems_:
            pair = Pair(id_of("", problem.instruction, problem.answer), "", problem.instruction, problem.answer, "toy")
            file.write(verify(pair, {"text": problem.annotation}, tokenizer, 1700, "toy", "train").json() + "\n")
    options = (f"--config.records={tmp_path / 'records.jsonl'}", "--config.model.preset=")
    options += (f"--config.model.path={tmp_path / 'model'}", "--config.weighing.lengths=(256,1728)")
    summary = killed_twice_or_not_at_all("likelihood", tmp_path, *options)
    assert summary["kept"] == len(problems_)
    before = sum(problem.forkable for problem in problems_)
    assert 0 < summary["statistics"]["with_fork"] < before
