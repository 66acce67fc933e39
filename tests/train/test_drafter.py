"""Training a drafter: which tokens follow which, that it learns and resumes, and its file."""

import dataclasses
import json
import re
import shutil
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.data.example import encode
from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Program
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.models.drafter import advanced
from pasta_jax.models.transformer import causal, embedded, trunk
from pasta_jax.runs.settings import changed
from pasta_jax.toy.task import problems
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.train import drafter
from pasta_jax.train.settings import DrafterSettings
from pasta_jax.weights.drafter import FILE, save, with_drafter
from pasta_jax.weights.load import export_model
from pasta_jax.weights.model import Model
from pasta_jax.weights.source import load
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.models import TOY, random_params

TOKENIZER = toy_tokenizer()
TAGS = TOKENIZER.tags
CONFIG = dataclasses.replace(TOY, vocab=TOKENIZER.model_vocab)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, and answers as launch.decode writes them."""
    folder = tmp_path_factory.mktemp("drafter")
    model = Model("mine", CONFIG, jax.device_put(random_params(CONFIG, 5, scale=1.0)), TOKENIZER, PREDICTED)
    export_model(model, folder / "mine")
    with (folder / "answers.jsonl").open("w") as file:
        for number, problem in enumerate(problems(3, 0, 60, "small")):
            program = problem.program(TOKENIZER).render()
            about = {"index": number, "prompt": problem.instruction, "finish_reason": "stop", "steps": 1}
            file.write(json.dumps(about | {"program": program}) + "\n")
    return folder


def settings(folder, **changes) -> DrafterSettings:
    model = dict(preset="", path=str(folder / "mine"), adapter="", dtype="float32")
    train = dict(learning_rate=3e-3, warmup=2, products="float32")
    of = dict(model=model, answers=str(folder / "answers.jsonl"), width=64, ids=40, rows=64, train=train, held_out=0.1)
    return changed(changed(DrafterSettings(), **of), **changes)


@pytest.fixture(scope="module")
def trained(folder):
    report = drafter.run(settings(folder, epochs=8), folder / "run")
    return report, [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]


def test_a_token_is_followed_by_the_next_of_its_thread():
    text = '1<promise topic="a" tokens=1 /><async>12</async>3<sync/>4'
    ids = Program.parse(text).ids(TOKENIZER)
    example = encode([7, 8], ids, TAGS, TOKENIZER.end_of_turn, PREDICTED)
    labelled = example.label >= 0
    states = drafter.joined([example, example], [np.zeros((labelled.sum(), 2), np.float16)] * 2)
    at, half = np.flatnonzero(labelled), labelled.sum()
    followed = 0
    for row, following in enumerate(states.after[:half]):
        if following < 0:
            continue
        followed += 1
        t, u = at[row], at[following]
        assert example.chunk[t] == example.chunk[u]
        assert example.token[u] == example.label[t]
        assert not (example.chunk[t + 1 : u] == example.chunk[t]).any()  # the next of its thread
        assert states.after[half + row] == half + following
    # All but the last label of each thread: main's end of turn, and the chunk's [/ASYNC].
    assert followed == half - 2
    _, labels = states.chains(np.array([0]), 2)
    assert labels[0, 0] == example.label[at[0]]
    assert (states.chains(np.array([half - 1]), 3)[1][0, 1:] == -1).all()


def test_hidden_states_are_in_memory_once(folder, tmp_path):
    model = load(settings(folder).model, only_decoding=True, stacked=False)
    examples = drafter.examples_of(model, folder / "answers.jsonl")
    drafter.states_of(model, examples, tmp_path / "states", lambda: False)
    tracemalloc.start()
    try:
        files = drafter.states_of(model, examples, tmp_path / "states", lambda: False)
        states = drafter.joined(examples, files)
        arrays = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
    finally:
        tracemalloc.stop()
    assert len(files) == len(examples)
    held = sum(trace.size for trace in arrays.traces) - states.label.nbytes - states.after.nbytes
    assert states.hidden.nbytes <= held < 1.5 * states.hidden.nbytes


def test_no_prompt_is_learnt_from_and_measured_on(folder, tmp_path, monkeypatch):
    """As in a file with several samples of each answer, one after another."""
    lines = (folder / "answers.jsonl").read_text().splitlines()
    (tmp_path / "answers.jsonl").write_text("\n".join([*lines, *lines[:6]]))
    read = []
    monkeypatch.setattr(drafter, "states_of", lambda model, examples, *_: read.extend(examples))
    assert drafter.run(settings(folder, answers=str(tmp_path / "answers.jsonl")), tmp_path / "run") is None
    prompts = [*map(drafter.prompt_of, read)]
    learnt, measured = prompts[:-7], prompts[-7:]
    assert (len(learnt), len(measured)) == (53, 7)
    assert not set(learnt) & set(measured)


def test_answers_that_are_too_long_are_counted(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(drafter, "states_of", lambda *_: None)
    with pytest.raises(PastaError, match=r"answers\.jsonl: 0 answers are too few; raise config\.longest"):
        drafter.run(settings(folder, longest=2), tmp_path / "none")
    drafter.run(settings(folder, longest=60), tmp_path / "some")
    told = re.findall(r"(\d+) of 60 answers are longer than config\.longest=(\d+): left out", capsys.readouterr().err)
    assert [longest for _, longest in told] == ["2", "60"]
    assert 0 < int(told[1][0]) < int(told[0][0]) == 60


def test_it_learns_and_writes_what_it_learnt(folder, trained):
    report, metrics = trained
    losses = [line["held_out/loss_1"] for line in metrics if "held_out/loss_1" in line]
    assert losses[-1] < losses[0] - 0.1
    assert all(0 <= share <= 1 for share in (*report.right, *report.overlap, report.known))
    assert len(report.right) == 3
    assert report.overlap[0] > 0.5
    model = load(changed(settings(folder).model, drafter=report.folder), only_decoding=True)
    assert len(model.params["drafter"]["ids"]) <= 40
    assert jax.tree.map(jnp.shape, model.params["layers"]) == jax.tree.map(
        jnp.shape, load(settings(folder).model, only_decoding=True).params["layers"]
    )
    # As it is decoded with, it changes states.
    ids = TOKENIZER.chat([("user", "birds crow 7")])[:12]
    tokens, place = jnp.asarray([ids]), jnp.arange(len(ids))[None]
    x_TxE = trunk(model.params, CONFIG, tokens, place, causal(place), place)[0][0]
    r_TxE = advanced(model.params["drafter"], x_TxE[:-1], embedded(model.params, tokens)[0, 1:])
    assert np.isfinite(r_TxE).all()
    assert float(jnp.abs(r_TxE - x_TxE[:-1]).max()) > 0.01


def test_a_stopped_run_goes_on_to_the_same_drafter(folder, trained):
    workdir, calls = folder / "stopped", []

    def soon() -> bool:
        calls.append(1)
        return len(calls) > 12

    assert drafter.run(settings(folder, epochs=8), workdir, soon) is None
    assert not (workdir / FILE).exists()
    (first, second) = sorted((workdir / "states").glob("*.npy"))
    second.unlink()
    first.rename(first.with_name("000000-other.npy"))  # of other answers
    assert drafter.run(settings(folder, epochs=8), workdir) == dataclasses.replace(trained[0], folder=str(workdir))
    assert (workdir / FILE).read_bytes() == (folder / "run" / FILE).read_bytes()
    with pytest.raises(PastaError, match=r"config\.ids"):
        drafter.run(settings(folder, epochs=8, ids=41), workdir)


def test_held_out_answers_too_short_for_the_depth_are_measured_as_far_as_they_go(folder, tmp_path):
    lines = (folder / "answers.jsonl").read_text().splitlines()[:19]
    short = json.loads(lines[0]) | {"program": "birds"}  # two labels
    (tmp_path / "answers.jsonl").write_text("\n".join([*lines, json.dumps(short)]))
    report = drafter.run(
        settings(folder, answers=str(tmp_path / "answers.jsonl"), epochs=1, held_out=0.05), tmp_path / "run"
    )
    assert len(report.right) == len(report.overlap) == 1 < settings(folder).depth


def test_what_cannot_be_used_is_refused_in_one_line(folder, tmp_path):
    with pytest.raises(PastaError, match=r"config\.answers is missing"):
        drafter.run(settings(folder, answers=""), tmp_path / "run")
    (tmp_path / "one.jsonl").write_text((folder / "answers.jsonl").read_text().splitlines()[0])
    with pytest.raises(PastaError, match="too few"):
        drafter.run(settings(folder, answers=str(tmp_path / "one.jsonl")), tmp_path / "one")
    assert drafter.run(settings(folder), tmp_path / "one", lambda: True) is None  # what is refused begins no run
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a", "program": "<async>", "finish_reason": "stop"}')
    with pytest.raises(PastaError, match=r"bad\.jsonl: line 1"):
        drafter.run(settings(folder, answers=str(tmp_path / "bad.jsonl")), tmp_path / "bad")

    model = load(settings(folder).model, only_decoding=True)
    embed, zeros = CONFIG.embed, np.zeros
    save(tmp_path, model, {"inward": zeros((32, 2 * embed)), "outward": zeros((embed, 32))}, np.arange(9))
    assert len(with_drafter(model, tmp_path).params["drafter"]["ids"]) == 9
    for name, matrices, ids in (
        ("don't fit", {"inward": zeros((32, embed)), "outward": zeros((embed, 32))}, np.arange(9)),
        ("ids must be", {"inward": zeros((32, 2 * embed)), "outward": zeros((embed, 32))}, np.array([10**6])),
    ):
        save(tmp_path / "other", model, matrices, ids)
        with pytest.raises(PastaError, match=name):
            with_drafter(model, tmp_path / "other")
    with pytest.raises(PastaError, match="another tokenizer"):
        with_drafter(dataclasses.replace(model, tokenizer=ByteTokenizer()), tmp_path)
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-10])
    with pytest.raises(PastaError, match="not a whole drafter"):
        with_drafter(model, tmp_path)
    shutil.rmtree(tmp_path / "other")
    with pytest.raises(PastaError, match="not found"):
        with_drafter(model, tmp_path / "other")
