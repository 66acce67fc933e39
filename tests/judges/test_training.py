"""Training judges on verdicts: what is learnt, from whom, and that the folder judges as the trained parameters do."""

import contextlib
import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import configs.train_judge
from pasta_jax.errors import PastaError
from pasta_jax.judges import training, verdicts
from pasta_jax.judges.choice import judge_of
from pasta_jax.judges.judge import Entry
from pasta_jax.judges.reward import learnt_from, load_reward_model, scorer
from pasta_jax.judges.settings import AgreementSettings, RewardSettings, TrainJudgeSettings
from pasta_jax.runs.settings import changed
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.train.pairs import PairExample, pair_batch
from pasta_jax.train.trainable import scoring
from pasta_jax.weights import card
from pasta_jax.weights.export import padding_of
from pasta_jax.weights.load import export_model
from pasta_jax.weights.model import Model
from tests.helpers.forked import command
from tests.helpers.models import QWEN2, random_params

TOKENIZER = toy_tokenizer()
CONFIG = dataclasses.replace(QWEN2, vocab=TOKENIZER.model_vocab, embed=32, ff=48, head_dim=16)
JUDGE = "weighted_alpaca_eval_gpt4_turbo"
MODELS = [f"model-{n}" for n in range(10)]
ITEMS = ["crow 3", "dove 5", "hawk 2", "wren 9", "swan 4"]
MINE = "texts of mine: its terms are not recorded"  # what the model is from that judges start from
QUESTIONS = [f"birds {' '.join(some)}" for some in itertools.permutations(ITEMS, 3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model, and verdicts that prefer answers with a seven, whatever their length."""
    folder = tmp_path_factory.mktemp("judge")
    export_model(Model("mine", CONFIG, jax.device_put(random_params(CONFIG, 5)), TOKENIZER), folder / "mine")
    made = card.Training("", 0, (MINE,), {}, "")
    card.write(folder / "mine", card.Card("model", "mine", None, TOKENIZER.tags.base, made))
    rng = np.random.default_rng(0)
    for number, model in enumerate(MODELS):
        rows = []
        for question in QUESTIONS:
            good = bool((rng.integers(8) + number) % 2)
            words = [*rng.choice(ITEMS, rng.integers(1, 4)), "gold 7" if good else "gold 6"]
            text = " ".join(words[n] for n in rng.permutation(len(words)))
            rows.append(dict(instruction=question, output_1="gold 4", output_2=text, preference=1.9 if good else 1.05))
        path = folder / "results" / model / JUDGE / verdicts.FILE
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps([*rows, dict(rows[0], preference=None)]))
    return folder


def chosen(folder: Path) -> dict[str, object]:
    """Values that differ from the tiny variant's."""
    return {
        "verdicts": str(folder / "results"), "judges": (JUDGE,), "model.preset": "", "model.path": str(folder / "mine"),
        "hidden": 4, "pairs": 240, "measured": 60, "ranked": 20, "rows": 8, "lengths": (64, 128), "epochs": 2,
        "save": 4, "adapter.rank": 8, "adapter.alpha": 16.0, "train.learning_rate": 1e-2, "train.warmup": 2,
        "train.products": "float32",
    }  # fmt: skip


def settings(folder: Path, **changes) -> TrainJudgeSettings:
    return changed(changed(configs.train_judge.tiny(), **chosen(folder)), **changes)


@pytest.fixture(scope="module")
def trained(folder) -> training.FoldReport:
    (report,) = training.run(settings(folder, only=(1,)), folder / "run")
    return report


def test_a_judge_learns_what_decides_and_ranks_models_that_it_has_not_seen(trained):
    assert trained.matched.agrees > 0.9
    assert 0.3 < trained.other_length.longer < 0.7
    assert trained.matched.longer == 0.5  # ties
    assert trained.models == 4
    assert trained.temperature > 0


def test_nothing_is_learnt_from_questions_and_models_that_are_measured_on(folder, monkeypatch, tmp_path):
    learnt = []
    monkeypatch.setattr(training, "_train", lambda _, pairs, *others: learnt.extend(pairs))
    assert training.run(settings(folder, only=(0,)), tmp_path) is None
    answers = verdicts.read(folder / "results", (JUDGE,))
    hidden = set(verdicts.some_of(MODELS, 4))
    allowed = {
        (one.question, one.text) for one in answers
        if one.model not in hidden and verdicts.fold_of(one.question, 2) != 0
    }  # fmt: skip
    assert len(learnt) > 100
    assert {(pair.question, text) for pair in learnt for text in (pair.better, pair.worse)} <= allowed


def test_models_are_ranked_by_questions_that_do_not_begin_alike(folder):
    asked = set()

    class Judge:
        tokenizer = TOKENIZER

        def score(self, pairs: list[tuple[str, str]]) -> list[float]:
            asked.update(question for question, _ in pairs)
            return [float("7" in answer) for _, answer in pairs]

    answers = verdicts.read(folder / "results", (JUDGE,))
    found, models = training._ranking(settings(folder, ranked=6), answers, Judge(), 1.0)
    assert (found > 0.9, models, len(asked)) == (True, len(MODELS), 6)
    alike = [dataclasses.replace(one, odds=-3.0) for one in answers]
    assert training._ranking(settings(folder, ranked=6), alike, Judge(), 1.0) == (None, len(MODELS))
    assert len({question.split()[1] for question in asked}) > 1  # the first six of all begin with the same bird
    assert len({question.split()[1] for question in sorted(QUESTIONS)[:6]}) == 1


def test_a_question_is_in_one_fold_however_it_is_spaced():
    assert all(verdicts.fold_of(f" {question.upper()}\n", 5) == verdicts.fold_of(question, 5) for question in QUESTIONS)
    assert {verdicts.fold_of(question, 5) for question in QUESTIONS} == {*range(5)}


def test_half_of_the_pairs_have_equal_length_and_all_a_clear_verdict(folder):
    answers = verdicts.read(folder / "results", (JUDGE,))
    pairs = verdicts.pairs_of(answers, 200, 0.5, 2.0, seed=0)
    assert pairs == verdicts.pairs_of(answers, 200, 0.5, 2.0, seed=0)
    assert sum(pair.matched for pair in pairs) >= 100
    assert all(pair.odds >= 2.0 and "gold 7" in pair.better and "gold 7" not in pair.worse for pair in pairs)
    assert verdicts.weak(answers, 0.0) == []


def test_the_folder_scores_as_the_parameters_do(folder, tmp_path):
    start = training.load(changed(settings(folder)).model, settings(folder).adapter, 0, None)
    trained = {
        "adapter": jax.tree.map(lambda leaf: leaf + 0.01, start.params),
        "score": jnp.asarray(np.random.default_rng(1).standard_normal(CONFIG.embed), jnp.float32),
    }
    del trained["adapter"]["tag_rows"]
    trained["adapter"]["tag_rows"] = start.params["tag_rows"]
    training.write(start.model, start.frozen, trained, tmp_path / "model")
    pair = [("birds crow 3", "gold 7"), ("birds crow 3", "gold 6 dove 5")]
    scores = load_reward_model(RewardSettings(str(tmp_path / "model"), lengths=(64,))).score(pair)
    padding = json.loads((tmp_path / "model/config.json").read_text())["pad_token_id"]
    assert TOKENIZER.end_of_turn != padding == padding_of(TOKENIZER)
    examples = [training.example(TOKENIZER, *one) for one in pair]
    loss = training.bradley_terry(scoring(settings(folder).train, start.model))
    sums = loss(trained, start.frozen, pair_batch([PairExample(*examples)], 64, 2))
    expected = np.logaddexp(0, -(scores[0] - scores[1]))
    np.testing.assert_allclose(float(sums.parts["loss"][0]), expected, rtol=1e-4)
    assert float(sums.parts["loss"][1]) == 1  # the row of padding has no weight


def test_its_card_says_what_it_learnt_from(folder, trained):
    written = (folder / "run/fold-1/model/README.md").read_text()
    for words in ("license: other", f"- {verdicts.TERMS}", training.LIMIT):
        assert words in written
    for model in ("run", "run/fold-1/model"):
        assert learnt_from(RewardSettings(str(folder / model))) == (
            f"in the weights that it starts from: {MINE}",
            verdicts.TERMS,
        )
    assert learnt_from(RewardSettings(str(folder / "mine"))) == (MINE,)


def test_a_question_is_judged_by_the_judge_of_its_fold_alone(folder, trained, tmp_path):
    reward = RewardSettings(str(folder / "run"), lengths=(64, 128))
    mine, other = ([q for q in QUESTIONS if verdicts.fold_of(q, 2) == fold] for fold in (1, 0))
    (score,) = scorer(reward)([(mine[0], "gold 7")])
    model = RewardSettings(str(folder / "run/fold-1/model"), lengths=(64, 128))
    assert score == pytest.approx(load_reward_model(model).score([(mine[0], "gold 7")])[0] / trained.temperature)
    verdict = judge_of("reward", AgreementSettings(reward=reward), "")(mine[0], Entry("gold 7"), Entry("gold 6"))
    assert verdict.first > 0.5
    with pytest.raises(PastaError, match=r"fold-0: is missing, .* train fold 0"):
        scorer(reward)([(other[0], "gold 7")])
    earlier = tmp_path / "earlier"  # whose folds were by the exact text of questions
    earlier.mkdir()
    (earlier / "folds.json").write_text('{"folds": 2}')
    with pytest.raises(PastaError, match=r"folds\.json: .*by"):
        scorer(changed(reward, model=str(earlier)))


@pytest.mark.slow
def test_a_stopped_run_ends_with_the_same_judge(folder, trained):
    """By the command, whose settings are those of the stopped run."""

    @contextlib.contextmanager
    def after_eight_steps():
        calls = iter(range(100))
        yield lambda: next(calls) >= 8

    again = folder / "stopped"
    assert training.run(settings(folder, only=(1,)), again, after_eight_steps) is None
    flags = [f"--config.{name}={value}" for name, value in (chosen(folder) | {"only": (1,)}).items()]
    process = command(folder, "train_judge", "--config=configs/train_judge.py:tiny", *flags, f"--workdir={again}")
    assert json.loads(process.finish().splitlines()[-1]) == [dataclasses.asdict(trained)]
    assert "resuming from step 8 of " in process.errors()
    assert (again / "fold-1/report.json").read_text() == (folder / "run/fold-1/report.json").read_text()


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        (dict(verdicts=""), "config.verdicts is missing"),
        (dict(verdicts="/nowhere"), r"/nowhere: no \*/"),
        (dict(judges=(JUDGE, "misspelt")), r"no \*/misspelt/annotations\.json"),
        (dict(only=(2,)), "config.only 2"),
        (dict(adapter=dict(rank=0)), "config.adapter.rank"),
        (dict(model=dict(dtype="bfloat16")), "no judge can be written from such a base"),
        (dict(hidden=1), "0 pairs of models that are not learnt from .*too few to measure on; raise config.hidden"),
    ],
)
def test_what_can_not_be_trained_is_refused(folder, tmp_path, monkeypatch, changes, place):
    monkeypatch.setattr(training, "fit", lambda *_: pytest.fail("trained"))
    with pytest.raises(PastaError, match=place):
        training.run(settings(folder, **changes), tmp_path)
    assert not (tmp_path / "config.json").exists(), "the corrected command would be refused as another run's"


def test_a_folder_belongs_to_the_verdicts_that_it_learns_from(folder, tmp_path, monkeypatch):
    """A judge of another fold that learnt from others would stand beside them; what can't be read begins no run."""
    monkeypatch.setattr(training, "fit", lambda *_: SimpleNamespace(complete=False))  # stopped
    results, run = tmp_path / "results", tmp_path / "run"
    with pytest.raises(PastaError, match=r"/nowhere: no \*/"):
        training.run(settings(folder, verdicts="/nowhere"), run)
    shutil.copytree(folder / "results", results)
    for _ in range(2):
        assert training.run(settings(folder, verdicts=str(results)), run) is None
    shutil.rmtree(results / MODELS[0])
    with pytest.raises(PastaError, match=r"run: was started with config\.verdicts \(content\) \w+, now it is \w+; "):
        training.run(settings(folder, verdicts=str(results)), run)
