"""Evaluation on prompts from start to end with a tiny model: answers are kept, a stopped run resumes, equal figures."""

import dataclasses
import functools
import json
import pickle
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

import configs.evaluate
from pasta_jax.data.prompt_sets import by_hash, no_fork
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import AnswerSettings, DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.evaluate import multipart, page, questions
from pasta_jax.evaluate import on_ray as evaluate_on_ray
from pasta_jax.evaluate import run as evaluate_text
from pasta_jax.evaluate import systems as evaluate_answers
from pasta_jax.evaluate.length_controlled import LengthControlled
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.report import Evaluation
from pasta_jax.evaluate.rivals import answer as rivals
from pasta_jax.evaluate.rivals.skeleton import parse_skeleton
from pasta_jax.evaluate.settings import EvaluateSettings, PromptCounts, SkeletonOptions
from pasta_jax.evaluate.systems import SHOWN, Task
from pasta_jax.evaluate.timing import Throughput
from pasta_jax.judges.offline import comparing
from pasta_jax.lang.structure import Positions
from pasta_jax.runs import ray
from pasta_jax.runs.settings import changed
from pasta_jax.weights.rules import Defaults, Rules
from tests.evaluate.test_interop import annotations
from tests.helpers.traces import tiny_model

pytestmark = pytest.mark.usefixtures("few_programs")
SYSTEMS = ("model", "untagged", "baseline", "skeleton", "unshared")
QUESTIONS = ["Name a <fish>|\x1b ![x](http://y)", "Why?", "List two cats"]


@pytest.fixture(scope="module")
def evaluate_in(tmp_path_factory, few_programs):
    """Short answers to a few prompts, by a model whose own temperature is 1 and that plans two points."""
    model = dataclasses.replace(tiny_model(), defaults=Defaults(temperature=1.0, max_topic_words=2))
    prompts = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text, "dataset": text[:4]}) + "\n" for text in QUESTIONS))

    def evaluate_in(workdir: Path, limit: int | None = None, **changes: object) -> Evaluation:
        settings = EvaluateSettings(
            systems=SYSTEMS,
            prompts=PromptCounts(file=str(prompts)),
            unmasked=1,
            timed=1,
            rounds=1,
            likelihood=2,
            judges=("repetition",),
            request=AnswerSettings(max_tokens=10),
            skeleton=SkeletonOptions(most_points=2, skeleton_tokens=8, point_tokens=6),
            decoding=DecodeConfig(lanes=1, rows=2, slots=512),  # as in tests/evaluate/rivals
        )
        return evaluate_text.run(changed(settings, **changes), workdir, limit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_text, "load", lambda source, only_decoding, mesh: model)
        patch.setattr(rivals, "parse_skeleton", lambda _, most, words: parse_skeleton("1. a\n2. b", most, words))
        patch.setattr(evaluate_text, "write_report", lambda *_: None)  # drawn by two tests
        yield evaluate_in


@pytest.fixture(scope="module")
def whole(evaluate_in, tmp_path_factory) -> tuple[Path, Evaluation]:
    """An evaluation as it is configured above, and its folder, which no test may change."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, evaluate_in(folder)


@pytest.fixture
def run(evaluate_in, tmp_path):
    return functools.partial(evaluate_in, tmp_path / "run")


@pytest.mark.slow
def test_a_run_keeps_its_answers_and_resumes(whole, run, tmp_path):
    evaluation = whole[1]
    shutil.copytree(whole[0], tmp_path / "run")
    report = evaluation.report
    assert (report.options["sampling"]["temperature"], report.options["max_topic_words"]) == (1.0, 2)
    assert json.loads((tmp_path / "run/report.json").read_text()) == json.loads(json.dumps(dataclasses.asdict(report)))
    systems = report.sets["file"]
    assert tuple(systems) == SYSTEMS
    assert {system: one.figures.answers for system, one in systems.items()} == dict.fromkeys(SYSTEMS, 3)
    assert (systems["baseline"].figures.fork_rate, systems["skeleton"].figures.fork_rate) == (0.0, 1.0)
    assert systems["baseline"].estimates["speedup"].value == 1.0
    assert systems["model"].figures.malformed_unmasked in (0.0, 1.0)
    assert set(systems["skeleton"].categories) == {"Name", "Why?", "List"}
    assert systems["untagged"].figures.fork_rate == 0.0
    assert {name: one.estimates["nats"].count for name, one in systems.items() if "nats" in one.estimates} == {
        "untagged": 2,
        "baseline": 2,
    }
    assert systems["untagged"].estimates["nats_over_baseline"].value == 0.0  # the same model, the same answers
    assert systems["untagged"].estimates["speedup_over_untagged"].value == 1.0
    assert "speedup_over_untagged" not in systems["skeleton"].estimates  # which isn't the same model
    preferred = systems["skeleton"].judged["preferred, repetition"]
    by_category = [one["preferred, repetition"] for one in systems["skeleton"].categories.values()]
    assert preferred.count == sum(one.count for one in by_category) == 3
    assert preferred.value == pytest.approx(sum(one.value for one in by_category) / 3)
    assert report.realised["skeleton"].prompts == 1
    paths = sorted((tmp_path / "run").glob("answers-*.jsonl"))
    assert [path.name for path in paths] == [f"answers-{name}.jsonl" for name in sorted(SYSTEMS)]
    head, *lines = (json.loads(line) for line in paths[0].read_text().splitlines())
    assert head["request.sampling.temperature"] == 1.0
    assert {line["prompt"] for line in lines} == set(QUESTIONS)
    assert sorted(line["seed"] for line in lines) == [0, 1, 2]
    pairs = [json.loads(line) for line in (tmp_path / "run/pairs.jsonl").read_text().splitlines()]
    assert [pair["prompt"] for pair in pairs] == by_hash(QUESTIONS, 3)

    # Cut off in the middle of its last line, then run again: the same answers.
    for path in paths:
        path.write_bytes(path.read_bytes()[:-20])
    told = (tmp_path / "run/pairs-key.jsonl").read_bytes()
    (tmp_path / "run/pairs.jsonl").rename(tmp_path / "mine.jsonl")  # for a person to read
    again = run()
    assert (tmp_path / "run/pairs-key.jsonl").read_bytes() == told
    assert not (tmp_path / "run/pairs.jsonl").exists()
    assert again.answers.keys() == evaluation.answers.keys()
    for system, answers in again.answers.items():
        assert [answer.fed for answer in answers] == [answer.fed for answer in evaluation.answers[system]]
    timings = [folder / "timings.jsonl" for folder in (tmp_path / "run", whole[0])]
    assert timings[0].read_bytes() == timings[1].read_bytes()  # they were read
    assert [len(path.read_text().splitlines()) for path in paths] == [4] * len(SYSTEMS)


@pytest.mark.extended
def test_workers_of_ray_answer_as_this_process_does(whole, run, monkeypatch):
    """Pieces go to workers as bytes, and come back in any order."""

    def on_ray(cluster, compute, pieces):
        assert len(pieces) == 2  # two questions for a worker's one lane, then one
        for number, piece in reversed([*enumerate(pieces)]):
            yield number, compute(pickle.loads(pickle.dumps(piece)))

    monkeypatch.setattr(ray, "on_ray", on_ray)
    monkeypatch.setattr(evaluate_text, "connected", lambda cluster: nullcontext())
    monkeypatch.setattr(evaluate_on_ray, "of_worker", lambda source, mesh: evaluate_text.load(source, True, mesh))
    there = run(executor="ray", timed=0)
    untimed = {"prefill_seconds": 0.0, "decode_seconds": 0.0}
    for system in SYSTEMS:
        pairs = zip(whole[1].answers[system], there.answers[system], strict=True)
        assert all(dataclasses.replace(a, **untimed) == dataclasses.replace(b, **untimed) for a, b in pairs)


def test_the_report_shows_every_prompt_safely(whole, tmp_path):
    """One page without scripts or addresses, and the same in Markdown with pictures; without texts, figures alone."""
    measured = dataclasses.replace(whole[1].report, throughput={"model": Throughput(3, 2, 5.0, 77.7)})
    evaluation = dataclasses.replace(whole[1], report=measured)
    rows = {line[:36].strip(): line[36:].split() for line in measured.text().splitlines()[2:]}
    assert (rows["answers"], rows["fork rate"][1]) == (["3"] * len(SYSTEMS), "0.000")
    assert {"repetition", "speedup", "length ratio", "preferred, repetition", "theoretical of forked"} <= rows.keys()
    page.write_report(evaluation, True, tmp_path)
    html, markdown = ((tmp_path / name).read_text() for name in ("report.html", "report.md"))
    assert "<fish>" not in html + markdown
    assert html.count("Name a &lt;fish&gt;|␛") >= 2  # among the worst answers, and with its timelines
    assert "Name a &lt;fish&gt;&#124;␛ !&#91;x](http://y)" in markdown  # a viewer loads no image
    assert "<script" not in html
    assert re.findall(r'(?:src|href)="(?!#)|url\((?!#)|@import', html) == []
    assert html.count('class="lanes"') == html.count('aria-label="threads over steps"') == 3 * len(SYSTEMS)
    assert "Seconds and efficiency are of the first 1 prompts alone." in html
    for text in (html, markdown):
        assert all(
            name in text
            for name in (*map(SHOWN.get, SYSTEMS), "paper: Pasta-BoN λ=∞", "Speed apart from brevity", "77.7")
        )
    assert all((tmp_path / name).exists() for name in re.findall(r"\]\(([\w.]+)\)", markdown))
    page.write_report(evaluation, False, tmp_path)
    assert "fish" not in (tmp_path / "report.html").read_text() + (tmp_path / "report.md").read_text()


def test_second_turns_follow_their_own_first_answers(run, monkeypatch, tmp_path):
    """The history is the system's own first answer, also of a run that was killed between the turns."""
    rows = [
        {"question_id": 80 + n, "category": "writing", "turns": [text, f"And {text}"]} for n, text in enumerate("abc")
    ]
    monkeypatch.setattr(questions, "rows_of", lambda name: [(name, row) for row in rows])
    asked = {}
    ask = Task.request

    def remembered(task: Task, question: Question) -> Request:
        asked[task.system, question.prompts, question.number] = question.messages
        return ask(task, question)

    judged = set()
    judge = comparing(lambda question, _: judged.add(question) or 0.0, scale=1.0)
    monkeypatch.setattr(evaluate_text, "judge_of", lambda *_: judge)
    monkeypatch.setattr(Task, "request", remembered)
    mt_bench = {
        "systems": ("model", "skeleton", "baseline"),
        "prompts": PromptCounts(0, 80, 0, 0),
        "pairs": 0,
        "timed": 0,
    }
    evaluation = run(limit=2, **mt_bench)
    assert list(evaluation.report.sets) == ["mt_bench", "mt_bench 2"]
    assert judged == {*by_hash("abc", 2), *(f"{text}\n\nAnd {text}" for text in by_hash("abc", 2))}
    for system in ("model", "skeleton"):
        first, second = (evaluation.of(name, system) for name in ("mt_bench", "mt_bench 2"))
        assert [answer.prompt for answer in first] == by_hash("abc", 2)
        for before, after in zip(first, second, strict=True):
            assert asked[system, "mt_bench 2", after.number] == [
                ("user", before.prompt), ("assistant", before.text), ("user", f"And {before.prompt}"),
            ]  # fmt: skip
            assert after.number == before.number == after.seed
        lines = [json.loads(line) for line in (tmp_path / f"run/mt_bench-{system}.jsonl").read_text().splitlines()]
        texts = {80 + "abc".index(one.prompt): [one.text, two.text] for one, two in zip(first, second, strict=True)}
        assert {line["question_id"]: line["choices"][0]["turns"] for line in lines} == texts

    path = tmp_path / "run/answers-model.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert [json.loads(line)["prompts"] for line in lines[1:]] == ["mt_bench"] * 2 + ["mt_bench 2"] * 2
    path.write_text("".join(lines[:3]))
    again = run(limit=2, **mt_bench)
    assert [answer.fed for answer in again.answers["model"]] == [answer.fed for answer in evaluation.answers["model"]]


@pytest.mark.slow
def test_throughput_is_of_systems_that_answer_many_at_a_time(run, monkeypatch):
    """The probe for unmasked figures stays out of the timed runs."""
    options = {"systems": ("model", "skeleton", "baseline"), "timed": 0, "decoding.lanes": 2}
    run(**options)
    monkeypatch.setattr(evaluate_answers, "well_formed", lambda *_: pytest.fail("probed while the clock ran"))
    evaluation = run(throughput=2, **options)
    measured = evaluation.report.throughput
    assert {system: (one.answers, one.lanes) for system, one in measured.items()} == {
        "model": (2, 2),
        "baseline": (2, 2),
    }
    for system, one in measured.items():
        text = sum(answer.text_tokens for answer in evaluation.answers[system][:2])
        assert one.tokens_per_second * one.seconds == pytest.approx(text, rel=0.05)  # both are rounded
    assert run(unmasked=0, throughput=2, **options).report.throughput == measured  # read
    assert "tokens of text per second, 2 prompts, 2 at a time" in evaluation.report.text()
    with pytest.raises(PastaError, match=r"throughput\.jsonl: begun with prompts="):
        run(unmasked=0, throughput=2, prompts=PromptCounts(0, 0, 0, 2), **options)


def test_the_report_states_what_annotations_say(run, monkeypatch, tmp_path):
    """With "LC" only where that was fitted."""
    rows = [{"instruction": text, "output": "An answer.", "generator": "x", "dataset": "y"} for text in QUESTIONS]
    monkeypatch.setattr(questions, "rows_of", lambda name: [(name, row) for row in rows])
    options = {"systems": ("baseline",), "prompts": PromptCounts(805, 0, 0, 0), "timed": 0}
    options["annotations"] = str(annotations([1, 2, 2], tmp_path))
    asked = []
    monkeypatch.setattr(evaluate_text, "length_controlled", lambda *arguments: asked.append(arguments))
    plain = "alpaca_eval: ours over base: win rate 66.67% (± 33.33), not length-controlled; 3 prompts"
    report = run(**options).report
    assert report.text().splitlines()[-1] == report.annotated() == plain
    assert report.products() == {"alpaca_eval": {"baseline": {"speedup": 1.0, "parallelism": 1.0, "length_ratio": 1.0}}}
    [(judged, instructions)] = asked
    assert (len(judged), instructions) == (3, QUESTIONS)
    monkeypatch.setattr(evaluate_text, "length_controlled", lambda *_: LengthControlled(51.234, 1.5))
    evaluation = run(**options)
    page.write_report(evaluation, False, tmp_path)
    for name in ("report.html", "report.md"):
        assert "win rate 66.67% (± 33.33), LC win rate 51.23% (± 1.50); 3 prompts" in (tmp_path / name).read_text()


def test_a_larger_limit_goes_on_and_another_model_or_config_is_refused_by_name(run, tmp_path):
    [few] = run(limit=1, systems=("baseline",)).answers["baseline"]
    assert few.prompt == by_hash(QUESTIONS, 1)[0]
    every = run(systems=("baseline",)).answers["baseline"]
    assert (every[0], len((tmp_path / "run/answers-baseline.jsonl").read_text().splitlines())) == (few, 4)
    with pytest.raises(
        PastaError, match=r"answers-baseline\.jsonl: begun with request.max_tokens=10, now 11; change it"
    ):
        run(limit=1, systems=("baseline",), **{"request.max_tokens": 11})
    path = tmp_path / "run/answers-baseline.jsonl"
    path.write_text(path.read_text().replace("tiny ", "other "))
    with pytest.raises(PastaError, match=r"begun with model=other .*, now tiny"):
        run(limit=1, systems=("baseline",))
    run(limit=1, systems=("skeleton",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_answers, "WORDING", "Other prompts for skeletons")
        with pytest.raises(PastaError, match=r"answers-skeleton\.jsonl: begun with skeleton\.wording"):
            run(limit=1, systems=("skeleton",))
    path.write_text(path.read_text().replace("other ", "tiny ").replace(json.dumps(few.prompt), '"Who?"'))
    with pytest.raises(PastaError, match=r"answer 0 of file: to another prompt"):
        run(limit=1, systems=("baseline",))


def test_prompts_of_our_own_are_a_set_and_there_must_be_one(run, tmp_path, monkeypatch):
    with pytest.raises(PastaError, match=r"config\.prompts: all sets have 0 prompts"):
        run(prompts=PromptCounts(0, 0, 0, 0))
    rows, rows_of = [{"instruction": text, "output": "An answer."} for text in QUESTIONS], questions.rows_of
    monkeypatch.setattr(
        questions, "rows_of", lambda name: [(name, row) for row in rows] if name == "alpaca_eval" else rows_of(name)
    )
    evaluation = run(systems=("model", "baseline"), limit=1, prompts=PromptCounts(5, 0, 0, 5, skip=1), timed=0)
    other, answer = evaluation.answers["model"]
    assert (answer.number, answer.prompt) == (1, by_hash(no_fork(), 2)[1])
    assert None not in (answer.malformed_unmasked, other.malformed_unmasked)  # of the first answers that are asked for
    assert len((tmp_path / "run/pairs.jsonl").read_text().splitlines()) == 1  # of the first set
    assert page.about(evaluation).startswith("1 prompts of alpaca_eval, 1 to 1 by hash, 1 prompts of no_fork, ")
    with pytest.raises(PastaError, match=r"config\.prompts\.skip: 100 leaves none of the 100 prompts of no_fork"):
        questions.question_sets(PromptCounts(0, 0, 0, 5, skip=100))


def test_parts_with_exact_answers_are_counted_and_shown(whole):
    chosen = questions.question_sets(PromptCounts(0, 0, 0, 0, multipart=2))["multipart"].chosen
    one = whole[1].answers["baseline"][0]
    answers = [dataclasses.replace(one, prompts="multipart", number=n, prompt=q.text) for n, q in enumerate(chosen)]
    exact = multipart.questions()[chosen[1].text]
    answers[1] = dataclasses.replace(answers[1], text="\n".join(f"{n}. {a}" for n, a in enumerate(exact.answers, 1)))
    sets = evaluate_text.reports({"baseline": answers}, {}, chosen, [], {})
    report = dataclasses.replace(whole[1].report, sets=sets)
    evaluation = dataclasses.replace(whole[1], report=report, answers={"baseline": answers})
    [part] = (part for part in page.sections(evaluation, True) if part.title == "Parts with exact answers")
    assert part.rows[1][:3] == ["sequential", "2", "50.0 (0.0–100.0)"]


def test_an_ablation_is_the_model_with_one_part_changed(run):
    settings = configs.evaluate.ablation()
    tasks = {task.system: task for task in evaluate_text.tasks_of(settings)}
    assert tuple(tasks) == settings.systems
    model = tasks["model"]
    assert tasks["no_topics"].template == model.template.with_rules(max_topic_tokens=0)
    assert tasks["no_syncs"].template == dataclasses.replace(model.template, syncs=False)
    assert all(tasks[system].model is model.model for system in ("no_topics", "no_syncs"))
    for policy in ("constant", "shared_start"):
        assert tasks[policy].template == model.template
        assert vars(tasks[policy].model) == vars(model.model) | {"positions": Positions(policy)}
    assert tasks["baseline"].template.sequential


def test_apar_needs_a_model_trained_so_and_forks_without_topics_or_joins(run):
    with pytest.raises(PastaError, match=r"config\.apar: tiny was not trained as APAR; name an adapter"):
        run(systems=("apar",))
    ids = (1,)
    template = Request(ids, 9, sequential=False, rules=Rules(max_topic_words=3, distinct_topics=True))
    config, options = DecodeConfig(1, 2, 0), SkeletonOptions(2, 8, 6, "none")
    task = evaluate_answers.as_named(Task("apar", tiny_model(), template, config, options, unmasked=0))
    assert task.template == Request(ids, 9, sequential=False, rules=Rules(max_topic_tokens=0), syncs=False)
    late = dataclasses.replace(task, config=dataclasses.replace(config, forks="admitted"))
    assert late.depends_on() == task.depends_on() | {"forks": "admitted"}  # whose steps are others
