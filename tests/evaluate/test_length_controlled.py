"""alpaca_eval itself on our files, with a server for a judge: its win rate is ours, its length-controlled one too."""

import csv
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys

import pytest

from pasta_jax.evaluate.interop import model_outputs, read_annotations, win_rate_of
from pasta_jax.evaluate.length_controlled import FILE, length_controlled
from pasta_jax.evaluate.questions import alpaca_eval_instructions, question_sets
from pasta_jax.evaluate.settings import PromptCounts as Counts
from pasta_jax.judges.verdicts import Annotation
from tests.evaluate.test_figures import answer
from tests.helpers.endpoint_server import Server
from tests.helpers.requires import requires_data, requires_dev

JUDGE = "weighted_alpaca_eval_gpt4_turbo"
JUDGED = 60  # each judgement takes alpaca_eval a fifth of a second
ROWS = [Annotation(f"Question {number}", "abcd", "ab", 1.0 + number / 4) for number in range(4)]


def test_without_the_package_there_is_no_figure(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "alpaca_eval", None)
    monkeypatch.setitem(sys.modules, "pandas", type(sys)("pandas"))
    assert length_controlled(ROWS, [row.instruction for row in ROWS]) is None
    told = capsys.readouterr().err
    assert "no length-controlled win rate: " in told
    assert "launch/setup.sh --dev" in told


def test_prompts_of_others_have_no_difficulty(capsys):
    assert length_controlled(ROWS, ["Question 0", "Question 1"]) is None
    assert length_controlled(ROWS[:1], ["Question 0"]) is None
    assert capsys.readouterr().err.count("not of several of AlpacaEval's instructions") == 2


def judge(number: int, body: dict) -> tuple:
    """Prefers shorter outputs and later letters, by quarters; as OpenAI's API states log-probabilities."""
    outputs = re.findall(r'"output": """(.*?)"""', body["messages"][-1]["content"], re.DOTALL)
    first, second = (ord(max(text)) - len(text) // 8 for text in outputs)
    share = 0.5 + 0.25 * ((first > second) - (first < second)) * (1 + (len(outputs[0]) % 3 == 0) * 0.6)
    tokens = [{"token": token, "bytes": None, "logprob": math.log(p)} for token, p in (("m", share), ("M", 1 - share))]
    content = {
        "id": "1", "object": "chat.completion", "created": 0, "model": "stub",
        "choices": [
            {
                "index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "m"},
                "logprobs": {"content": [tokens[0] | {"top_logprobs": tokens}], "refusal": None},
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    }  # fmt: skip
    return 200, {"Content-Type": "application/json"}, json.dumps(content).encode(), None


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A cache of the Hub's client with the file that the fit needs, in its layout, with values of our own."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "hub/datasets--tatsu-lab--alpaca_eval"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    values = random.Random(0)
    difficulty = [values.gauss(0, 2) for _ in range(805)]
    names = ("index", "preference", "std_delta_len", "instruction_difficulty", "not_gamed_baseline", "model")
    with (folder / "snapshots" / ("0" * 40) / FILE).open("w") as file:
        table = csv.writer(file)
        table.writerow(names)
        for model, number in itertools.product(("concise", "verbose"), range(805)):
            length = values.gauss(1 if model == "verbose" else -1, 0.3)
            chance = 1 / (1 + math.exp(-difficulty[number] - length))
            table.writerow((number, chance, length, difficulty[number], False, model))
    return home


@pytest.fixture(scope="module")
def judged(tmp_path_factory, hub):
    """The folder in which `alpaca_eval evaluate` has judged answers to AlpacaEval's first instructions."""
    folder = tmp_path_factory.mktemp("judged")
    lengths = random.Random(1)
    for name, letters in (("ours", "bd"), ("theirs", "ac")):
        texts = [lengths.choice(letters) * lengths.randint(1, 60) for _ in range(JUDGED)]
        pairs = zip(alpaca_eval_instructions()[:JUDGED], texts, strict=True)
        rows = model_outputs([answer(0, prompt, text=text) for prompt, text in pairs], [""] * JUDGED, name)
        (folder / f"{name}.json").write_text(json.dumps(rows))
    command = [
        sys.executable, "-c", "from alpaca_eval.main import main; main()", "evaluate",
        f"--model_outputs={folder}/ours.json", f"--reference_outputs={folder}/theirs.json", f"--output_path={folder}",
        f"--annotators_config={JUDGE}", "--precomputed_leaderboard=None",
        "--caching_path=None", "--metric_kwargs={'save_weights_dir': None}",
    ]  # fmt: skip
    with Server(judge) as server:
        env = os.environ | {"OPENAI_API_BASE": server.url, "OPENAI_API_KEY": "none", "HF_HOME": str(hub)}
        subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, timeout=300)
        assert len(server.seen) == JUDGED
    return folder / JUDGE


@requires_data
@requires_dev("alpaca_eval")
@pytest.mark.extended
@pytest.mark.filterwarnings("ignore")  # of the packages that it imports
def test_alpaca_evals_own_figures_are_ours(judged, hub, monkeypatch):
    with (judged / "leaderboard.csv").open() as file:
        [stated] = csv.DictReader(file)
    rows = read_annotations(judged / "annotations.json")
    rate = win_rate_of(rows)
    assert (rate.judged, rate.generator, rate.reference) == (JUDGED, "ours", "theirs")
    assert rate.win_rate == pytest.approx(float(stated["win_rate"]), abs=1e-9)
    assert rate.standard_error == pytest.approx(float(stated["standard_error"]), abs=1e-9)

    from alpaca_eval import constants

    monkeypatch.setattr(constants, "DEFAULT_CACHE_DIR", str(hub / "hub"))
    instructions = alpaca_eval_instructions()
    fitted = length_controlled(rows, instructions)
    assert fitted.win_rate == pytest.approx(float(stated["length_controlled_winrate"]), abs=1e-9)
    assert fitted.standard_error == pytest.approx(float(stated["lc_standard_error"]), abs=1e-9)
    assert abs(fitted.win_rate - rate.win_rate) > 1  # lengths were worth something
    # In another order, as our files have it, each instruction keeps its difficulty.
    random.Random(2).shuffle(rows)
    assert length_controlled(rows, instructions) == fitted
    monkeypatch.setattr(constants, "DEFAULT_CACHE_DIR", str(judged))
    assert length_controlled(rows, instructions) is None


@requires_data
def test_our_prompts_are_alpaca_evals_instructions():
    [chosen] = (one.chosen for one in question_sets(Counts(805, 0, 0, 0)).values())
    assert {question.text for question in chosen} == set(alpaca_eval_instructions())
