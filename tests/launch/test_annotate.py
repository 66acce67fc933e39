"""The annotation command: its variants on small inputs, records on a terminal, and one-line errors."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from absl import flags
from absl.testing import flagsaver

import configs.annotate
from launch import annotate
from pasta_jax.annotate import pipeline
from pasta_jax.annotate.settings import LikelihoodSettings
from pasta_jax.data.batches import Feed, Layout
from pasta_jax.data.builder import Examples
from pasta_jax.data.records import read_records
from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Program
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.llm.client import IN_A_ROW, EndpointDown
from pasta_jax.runs.settings import changed
from pasta_jax.toy.tokenizer import toy_tokenizer
from tests.helpers.endpoint_server import Server, bad, good
from tests.helpers.requires import requires_data

LIST = "Three of them:\n\n" + "\n".join(
    f"- {name}: it is one of the many words here." for name in ("Ant", "Bee", "Cow")
)


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run the command with changes to a variant's config; (stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    flags.FLAGS.mark_as_parsed()

    def run(variant: str, changes: dict | None = None, **given) -> tuple[str, str]:
        settings = changed(getattr(configs.annotate, variant)(), **{"model": {"preset": "toy"}} | (changes or {}))
        with flagsaver.flagsaver(output="out", **given):
            annotate.main(settings)
        return capsys.readouterr()

    return run


def pairs(path: str, answers: list[str] | None = None) -> dict:
    """Write a source, whose answers are lists unless they are passed; the config changes that read it."""
    rows = [{"instruction": f"Name three animals, {n}", "output": text} for n, text in enumerate(answers or [LIST] * 3)]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"source": path, "drop_evaluation": False, "response_words": (1, 99)}


@pytest.mark.slow
def test_the_toy_task_from_end_to_end(command):
    out, err = command("toy")
    records = read_records(Path("out/records.jsonl"))
    assert f"kept {len(records)} records" in out
    for phase in ("annotating", "verifying", "tokenising"):
        assert f"{phase}: {len(records)} of {len(records)}, " in err
    assert "wrote out/dataset" in err
    train = Examples(Path("out"), "train", toy_tokenizer(), False, PREDICTED)
    assert len(train) == sum(record.split == "train" for record in records) > 400
    repeated, err = command("toy")
    assert repeated == out
    assert "out/dataset is current" in err
    feed = Feed(train, Layout(lengths=(64, 128), rows=8, packed=True, too_long="drop"))
    assert feed.batch(seed=0, step=17).token.shape in ((8, 64), (8, 128))


def test_records_are_shown_all_or_those_with_chunks(command):
    plain = "Just one short answer."
    command("sharegpt_structure", pairs("a.jsonl", [*[plain] * 7, LIST, plain]))
    out, _ = command("sharegpt_structure", inspect=2)
    assert out.count("Name three animals, ") == out.count("record ") == out.count(" of 9: ") == 2
    assert "theoretical speedup" in out
    same, _ = command("sharegpt_structure", inspect=2)
    assert same == out
    out, _ = command("sharegpt_structure", inspect=2, forks=True)
    assert "Name three animals, 7" in out
    assert "[1 " in out
    assert out.count("record ") == 1
    with pytest.raises(PastaError, match="--forks: chooses among the records of --inspect"):
        command("sharegpt_structure", forks=True)
    path = Path("out/records.jsonl")
    kept = [line for line in path.read_text().splitlines() if "animals, 7" not in line]
    path.write_text(re.sub(r'"id": ?"[^"]*"', r'"id": "\\u001b]0;title\\u0007[/b]"', "\n".join(kept) + "\n"))
    out, _ = command("sharegpt_structure", inspect=1)
    assert "␛]0;title␇[/b]" in out
    with pytest.raises(PastaError, match="none of its 8 records has a chunk; drop --forks"):
        command("sharegpt_structure", inspect=2, forks=True)


def test_max_pairs_always_selects_the_same_pairs(command):
    every = pairs("a.jsonl", [LIST] * 20)
    with Path("a.jsonl").open("a") as file:
        file.write("{\n")
    out, _ = command("sharegpt_structure", every | {"max_pairs": 5})
    assert "unreadable: a record must be JSON: 1\n  left out: beyond max_pairs: 15" in out
    part = [record.id for record in read_records(Path("out/records.jsonl"))]
    assert len(part) == 5
    Path("out").rename("before")
    command("sharegpt_structure", every)
    whole = [record.id for record in read_records(Path("out/records.jsonl"))]
    assert part == [id for id in whole if id in sorted(whole)[:5]]


def test_an_endpoint_annotates_and_its_failures_are_counted(command):
    def respond(_, body):
        question = body["messages"][-1]["content"]
        answer = question.partition("Answer:\n")[2]
        if ", 1" in question:
            return good(answer.replace("Ant", "Aunt"))
        return good(re.sub("- (.*)", r"- <async topic='animal'>\1</async>", answer))

    with Server(respond) as server:
        endpoint = {"url": server.url, "key_variable": "", "requests_per_minute": 1e6}
        out, _ = command("openai", pairs("a.jsonl") | {"endpoint": endpoint, "attempts": 1})
        requests = len(server.seen)
        repeated, _ = command("openai", pairs("a.jsonl") | {"endpoint": endpoint, "attempts": 1})
        assert len(server.seen) == requests == 3
        for name, value in (("url", server.url + "/other"), ("reasoning_effort", "low")):
            with pytest.raises(PastaError, match=f"begun with {name}="):
                command("openai", pairs("a.jsonl") | {"endpoint": endpoint | {name: value}, "attempts": 1})
    assert repeated == out
    assert "refused: rewritten: 1" in out
    assert "3 requests, 3,000 tokens in, 300 out; price not set" in out
    records = read_records(Path("out/records.jsonl"))
    assert [record.instruction[-1] for record in records] == ["0", "2"]
    assert all(record.forks == 3 and Program.parse(record.program).strip() == LIST for record in records)
    (refused,) = [json.loads(line) for line in Path("out/refused.jsonl").read_text().splitlines()]
    assert refused["reason"] == "rewritten"
    assert "character" in refused["detail"]


def test_an_endpoint_that_is_down_is_asked_again_by_the_same_command(command, capsys):
    up = [False]

    def respond(_, body):
        question = body["messages"][-1]["content"]
        if not up[0] or (up == [2] and ", 1\n" in question):
            return bad(503)
        return good(question.partition("Answer:\n")[2])

    with Server(respond) as server:
        endpoint = {"url": server.url, "key_variable": "", "requests_per_minute": 1e6, "retries": 1, "backoff_s": 0.001}
        endpoint |= {"dollars_per_million_in": 2.0}
        changes = pairs("a.jsonl", [LIST] * 15) | {"endpoint": endpoint, "concurrency": 1}
        with pytest.raises(EndpointDown, match=r"503 .*2 times; rerun the command to resume") as error:
            command("openai", changes)
        assert (error.value.exit_code, "\n" in str(error.value)) == (3, False)
        assert len(server.seen) == 2 * IN_A_ROW
        assert "503 {}; retrying up to 1 times" in capsys.readouterr().err
        assert len(Path("out/progress.jsonl").read_text().splitlines()) == 1
        up[0] = 2  # all but one
        with pytest.raises(EndpointDown, match=r"without an answer \(status 503: 1\); rerun the command"):
            command("openai", changes)
        assert "unanswered: status 503: 1\nkept 14 records" in capsys.readouterr().out
        assert len(read_records(Path("out/records.jsonl"))) == 14
        up[0], before = True, len(server.seen)
        out, _ = command("openai", changes)
        assert len(server.seen) == before + 1
    assert "unanswered" not in out
    assert len(read_records(Path("out/records.jsonl"))) == 15
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["cost"] == {"requests": 15, "tokens_in": 15_000, "tokens_out": 1500, "dollars": 0.03}
    assert summary["unanswered"] == {}
    assert "all runs together: 15 requests, 15,000 tokens in, 1,500 out; $0.03" in out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_words": (3, 100, 4)}, "config.prompt_words: expected `array` of length 2"),
        ({"max_pairs": -1}, "config.max_pairs: expected `int` >= 0"),
        ({"annotator": "toy"}, "config.annotator: unknown value 'toy'; choose from structure, own"),
        ({"source": "absent.jsonl"}, "absent.jsonl: No such file"),
        ({"source": "alpaca_eval"}, "alpaca_eval: reserved for evaluation"),
        ({"records": "absent/records.jsonl"}, "absent/records.jsonl: No such file"),
        ({"source": ""}, "config.source is missing"),
        ({"response_words": (998, 999)}, "none of its 3 records is usable (response length: 3); widen prompt_words"),
        ({"model": {"preset": "gemma_2b"}}, "no package ships its tokenizer"),
    ],
)
def test_errors_are_one_line(command, changes, message):
    with pytest.raises(PastaError, match=re.escape(message)) as error:
        command("sharegpt_structure", pairs("a.jsonl") | changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "mine.jsonl: has no records"),
        (
            b'{"input": "a", "text": "b"}\n',
            "or messages: 1); see mine.jsonl: line 1: its fields: input, text; docs/DATA.md",
        ),
        (b'{"instruction": "caf\xe9", "output": "b"}\n', "(a record must be JSON: 1); see mine.jsonl: line 1"),
    ],
)
def test_a_source_without_a_usable_record_is_refused_with_its_first_mistake(command, content, message):
    Path("mine.jsonl").write_bytes(content)
    with pytest.raises(PastaError, match=re.escape(message)):
        command("sharegpt_structure", {"source": "mine.jsonl", "drop_evaluation": False})


def test_a_dataset_of_other_records_is_told(command, capsys):
    source, dataset = pairs("a.jsonl"), Path("out/dataset")
    command("sharegpt_structure", source)
    assert "earlier run" not in command("sharegpt_structure", source | {"dataset": False})[1]  # it is of these
    assert dataset.is_dir()
    with pytest.raises(PastaError, match="no record was kept"):
        command("sharegpt_structure", source | {"dataset": False, "max_tokens": 20})
    assert "out/dataset is of an earlier run, perhaps of other records" in capsys.readouterr().err


def test_the_chunks_to_weigh_are_asked_for_first(command, monkeypatch):
    monkeypatch.setattr(pipeline, "read_pairs", pytest.fail)
    with pytest.raises(PastaError, match=r"config\.records is missing"):
        command("likelihood", {"model": {"preset": "smollm2_135m"}})


def test_records_keep_their_split(monkeypatch):
    """Else a model from the new folder would have learnt what one from the old folder is measured on."""
    texts = dict.fromkeys(("system", "instruction", "response", "source", "origin"), "x")
    known = [SimpleNamespace(id=f"p{n}", split="validation" if n % 2 else "train", **texts) for n in range(9)]
    monkeypatch.setattr(pipeline, "read_records", lambda _: known)
    pairs, _, splits = pipeline.read_pairs(LikelihoodSettings(records="x"))
    assert splits == {one.id: one.split for one in known}
    assert len(pairs) == 9


def test_an_output_that_cannot_be_used_is_refused_before_the_work(command, monkeypatch):
    monkeypatch.setattr(pipeline, "read_pairs", pytest.fail)
    Path("out").write_text("")
    with pytest.raises(PastaError, match="out: is a file; choose a folder"):
        command("toy")


def test_the_output_folder_is_required():
    flags.FLAGS.mark_as_parsed()
    with pytest.raises(PastaError, match="--output is missing"):
        annotate.main(configs.annotate.toy())


@requires_data
def test_evaluation_prompts_are_left_out(command):
    from pasta_jax.data.sources import read

    question = next(iter(read("mt_bench"))).instruction
    changes = pairs("a.jsonl") | {"drop_evaluation": True, "prompt_words": (1, 999)}
    with Path("a.jsonl").open("a") as file:
        file.write(json.dumps({"instruction": question, "output": LIST}) + "\n")
    out, _ = command("sharegpt_structure", changes)
    assert "left out: evaluation prompt: 1" in out
