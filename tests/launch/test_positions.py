"""Every command decodes with the positions of the model or adapter, and refuses one that does not fit its base."""

import dataclasses
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

import configs.preference
import configs.sft
import pasta_jax as pasta
from pasta_jax.answer import run as decode
from pasta_jax.answer.job import read_job
from pasta_jax.answer.settings import DecodeSettings
from pasta_jax.benchmark import run as benchmark
from pasta_jax.benchmark.settings import BenchmarkSettings, SamplingBenchmark
from pasta_jax.decode.lane_log import LaneLog
from pasta_jax.decode.settings import AnswerSettings, DecodeConfig, RequestSettings
from pasta_jax.decode.trace import Trace
from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.structure import POLICIES, PREDICTED, Positions, structure
from pasta_jax.preference import sweep
from pasta_jax.preference.artifacts import Artifact
from pasta_jax.preference.learn import encode_pairs
from pasta_jax.preference.pair import PromptPair
from pasta_jax.preference.sample import sample_baseline, sample_round
from pasta_jax.preference.settings import PreferenceSettings, SweepSettings
from pasta_jax.preference.stage import RoundModel, open_stage
from pasta_jax.runs.settings import changed
from pasta_jax.toy import run as evaluate
from pasta_jax.toy.settings import ToyEvaluationSettings
from pasta_jax.toy.task import problems
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.train import sft
from pasta_jax.weights.adapter import describe, new_adapter, save_adapter
from pasta_jax.weights.load import export_model
from pasta_jax.weights.model import Model
from pasta_jax.weights.settings import AdapterSettings, ModelSource
from pasta_jax.weights.source import load
from tests.helpers.forked import command
from tests.helpers.loading import load_model
from tests.helpers.models import random_params
from tests.toy.test_ablation import talkative

DECODED = (PREDICTED, Positions("constant", 13), Positions("shared_start"))
ADAPTER = AdapterSettings(rank=2, alpha=4.0)
PROBLEMS = problems(1, 0, 4, "small")
QUESTION = PROBLEMS[0].instruction
TOKENS, TOPIC, CHUNK = 60, 2, 12  # budgets of every answer here
TRAINED = ("trained model", "adapter")
pytestmark = pytest.mark.usefixtures("few_programs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder of models: one trained with each policy, and an adapter trained with each on a plain base.

    The adapters change no weights, so that all these models sample the same tags.
    """
    folder = tmp_path_factory.mktemp("models")
    export(folder / "base", None)
    export(folder / "other", None, seed=3)
    base = load_model("", str(folder / "base"))
    pairs = new_adapter(base.params, ADAPTER, base.tokenizer.tags, seed=0)
    for policy in POLICIES:
        positions = Positions(policy, 13)
        export(folder / policy, positions)
        save_adapter(folder / f"{policy}_adapter", pairs, base, describe(base, ADAPTER, positions))
    return folder


def export(path: Path, positions: Positions | None, seed: int | None = None) -> None:
    """A model that forks often, with other weights if a seed is passed."""
    model = talkative()
    params = model.params if seed is None else jax.device_put(random_params(model.config, seed))
    export_model(dataclasses.replace(model, params=params, positions=positions), path)


def named(folder: Path, positions: Positions, kind: str) -> dict[str, str]:
    """The config fields that name a model trained with these positions, or a base and an adapter trained with them."""
    if kind == "adapter":
        return {"path": str(folder / "base"), "adapter": str(folder / f"{positions.policy}_adapter")}
    return {"path": str(folder / positions.policy)}


@pytest.fixture
def traces(monkeypatch) -> list[Trace]:
    """The trace of every request that the interpreter finishes."""
    finished, result_of = [], LaneLog.result

    def noting(log, *arguments):
        result = result_of(log, *arguments)
        finished.append(result.trace)
        return result

    monkeypatch.setattr(LaneLog, "result", noting)
    return finished


def has_positions(trace: Trace, positions: Positions) -> bool:
    """Whether all tokens of an answer have the positions that lang/structure.py defines."""
    prompt = len(trace.prompt_ids)
    ids = [*trace.prompt_ids, *trace.linear_ids()]
    parts = structure(ids, trace.tags, prompt, toy_tokenizer().end_of_turn, positions, ended=False)
    for thread in range(len(trace.closed)):
        actual = trace.position[trace.thread == thread]
        expected = parts.position[prompt:][parts.chunk[prompt:] == thread]
        known = min(len(actual), len(expected))  # an unclosed promise at the end is in no program
        if actual[:known].tolist() != expected[:known].tolist():
            return False
    return True


# One decoding config and one kind of request, so that all commands share programs.
DECODING = DecodeConfig(lanes=1, rows=2)
ANSWER = {"max_tokens": TOKENS, "max_topic_tokens": TOPIC, "max_chunk_tokens": CHUNK}


def run_decode(model: dict[str, str], folder: Path, program: Path | None = None) -> None:
    settings = DecodeSettings(
        ModelSource(**model), decoding=DECODING, request=RequestSettings(**ANSWER, temperature=1.0)
    )
    job = read_job(QUESTION, program_file=program, live="no", started=time.perf_counter())
    decode.run(settings, job)


def run_replay(model: dict[str, str], folder: Path) -> None:
    program = folder / "program.txt"
    parts = Text("birds"), Chunk("dances", 1, "conga felt sole"), Text("7"), Sync(), Text("birds")
    program.write_text(Program(parts).render())
    run_decode(model, folder, program)


def run_api(model: dict[str, str], folder: Path) -> None:
    loaded = pasta.load_model(model["path"], model.get("adapter"), policy=model.get("policy", ""))
    options = {"max_tokens": TOKENS, "temperature": 1.0, "max_topic_tokens": TOPIC, "max_chunk_tokens": CHUNK}
    pasta.generate(loaded, QUESTION, rows=2, **options)


def run_evaluate(model: dict[str, str], folder: Path) -> None:
    baseline, request = ModelSource(path=str(folder.parent / "base")), AnswerSettings(**ANSWER, temperature=1.0)
    evaluate.run(
        ToyEvaluationSettings(
            ModelSource(**model), baseline, "small", problems=3, ablation=0, decoding=DECODING, request=request
        )
    )


def preference(model: dict[str, str], folder: Path) -> PreferenceSettings:
    """The tiny preference stage, without a round."""
    return changed(
        configs.preference.tiny(),
        model=model,
        baseline={"path": str(folder.parent / "base")},
        rounds=0,
        prompts={"count": 2},
        sample={"count": 2},
        evaluate={"count": 2, "temperatures": (1.0,)},
        decoding=DECODING,
        request=ANSWER,
        score={"efficiency": "parallelism"},
        mesh={"data": 1},  # its two rows don't divide over the devices of these tests
    )


def run_preference(model: dict[str, str], folder: Path) -> None:
    """Sample, and encode the samples as pairs to learn from."""
    stage = open_stage(preference(model, folder), folder / "preference")
    sample_baseline(stage, stage.prompts)
    samples = sample_round(stage, RoundModel(0, stage.trainable.params, "sft"), stage.sft)
    pairs = Artifact(folder, [PromptPair(number, 0, 1, (), (), ()) for number in range(len(samples.records))], "")
    tokenizer, positions = stage.sft.tokenizer, stage.sft.positions
    for prompt, pair in encode_pairs(stage, samples, pairs).items():
        for example, answer in zip((pair.better, pair.worse), samples.records[prompt].answers, strict=True):
            ids = [*tokenizer.chat([("user", stage.prompts[prompt].instruction)]), *answer.ids]
            start = len(ids) - len(answer.ids)
            parts = structure(ids, tokenizer.tags, start, tokenizer.end_of_turn, positions, answer.ended)
            assert example.position.tolist() == parts.position.tolist()


def run_sweep(model: dict[str, str], folder: Path) -> None:
    sweep.run(SweepSettings(preference(model, folder), choices=((2.0,),)), folder / "sweep")
    [point] = (folder / "sweep/points").iterdir()
    assert load(ModelSource(path=str(point / "model"))).positions.matches(load_named(model).positions)


def run_benchmark(model: dict[str, str], folder: Path) -> None:
    source = folder / "questions.jsonl"
    pairs = [{"instruction": problem.instruction, "output": problem.answer} for problem in PROBLEMS]
    source.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    sampling = SamplingBenchmark(str(source), (1,), count=2, waves=6.0, max_tokens=TOKENS, rows=2, slots=256)
    benchmark.sampling(BenchmarkSettings(ModelSource(**model), sampling=sampling))


def run_sft(model: dict[str, str], folder: Path) -> None:
    """Train further, which is refused before anything is written."""
    sft.run(
        changed(configs.sft.tiny(), fresh={"layers": 0}, model=model, mesh={"data": 1}), folder / "sft", lambda: False
    )


def load_named(model: dict[str, str]) -> Model:
    return load(ModelSource(**model))


Command = Callable[[dict[str, str], Path], None]
COMMANDS = (run_decode, run_replay, run_api, run_evaluate, run_preference, run_sweep, run_benchmark)


def name_of(command: Command) -> str:
    return command.__name__.removeprefix("run_")


@pytest.fixture
def workdir(folder) -> Path:
    """An empty folder next to the models."""
    path = folder / "workdir"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def marks(command: Command, positions: Positions) -> tuple[pytest.MarkDecorator, ...]:
    """One command is quick to test; each has programs of its own to compile, for each positions."""
    if command is run_decode and positions == PREDICTED:
        return ()
    return (pytest.mark.slow if command is run_decode or positions.policy == "constant" else pytest.mark.extended,)


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize(
    ("run_command", "positions"),
    [
        pytest.param(command, positions, marks=marks(command, positions), id=f"{name_of(command)}-{positions}")
        for command in COMMANDS
        for positions in DECODED
    ],
)
def test_a_command_decodes_at_the_models_own_positions(run_command, kind, positions, folder, workdir, traces):
    run_command(named(folder, positions, kind), workdir)
    forked = [trace for trace in traces if len(trace.closed) > 1]
    assert forked
    assert {trace.policy for trace in forked} == {positions.policy}
    assert all(has_positions(trace, positions) for trace in traces)
    for other in (*DECODED, Positions("constant", 14)):
        if other != positions:
            assert not all(has_positions(trace, other) for trace in traces), "the answers tell no positions apart"


# What the others load, they load as these do.
LOADING = (run_decode, run_api, run_preference, run_sweep, run_sft)


@pytest.mark.parametrize(
    ("run_command", "kind"),
    [
        pytest.param(command, kind, id=f"{name_of(command)}-{kind}")
        for command in COMMANDS
        for kind in TRAINED
        if kind != "adapter" or command in LOADING
    ],
)
def test_a_model_trained_with_true_lengths_cannot_decode(run_command, kind, folder, workdir, traces):
    with pytest.raises(PastaError, match="trained with position policy oracle, whose lengths are unknown"):
        run_command(named(folder, Positions("oracle"), kind), workdir)
    assert traces == []


def truncated(path: Path, target: Path) -> Path:
    """A copy without its last third."""
    content = path.read_bytes()
    target.write_bytes(content[: len(content) * 2 // 3])
    return target


def mismatched(what: str, folder: Path, workdir: Path) -> tuple[dict[str, str], str]:
    """Config fields that name a mismatched or truncated file, and what the error states."""
    adapter = folder / "shared_start_adapter/adapter_model.safetensors"
    match what:
        case "another base":
            return {
                "path": str(folder / "other"),
                "adapter": str(adapter),
            }, "an adapter for (other weights|base, not)"
        case "another policy":
            model = named(folder, Positions("constant", 13), "trained model")
            return model | {"policy": "predicted"}, "constant: trained with positions constant 13, not predicted; leave"
        case "another policy of an adapter":
            model = named(folder, Positions("shared_start"), "adapter")
            return model | {"policy": "predicted"}, "trained with positions shared_start, not predicted; leave"
        case "a truncated adapter":
            cut = truncated(adapter, workdir / "cut.safetensors")
            return {"path": str(folder / "base"), "adapter": str(cut)}, "cut.safetensors: not a complete adapter file"
    shutil.copytree(folder / "base", workdir / "cut")  # a file of the model
    truncated(folder / "base" / what, workdir / "cut" / what)
    return {"path": str(workdir / "cut")}, f"cut/{what}"


MISMATCHES = ("another base", "another policy", "another policy of an adapter", "a truncated adapter")
FILES = ("model.safetensors", "config.json", "tokenizer.model")


@pytest.mark.parametrize(
    ("run_command", "what"),
    [
        pytest.param(command, what, id=f"{name_of(command)}-{what}")
        for command in (*COMMANDS, run_sft)
        for what in (*MISMATCHES, *FILES)
        if what in MISMATCHES or command in LOADING
    ],
)
def test_every_command_refuses_a_mismatch_in_one_line(run_command, what, folder, workdir):
    model, message = mismatched(what, folder, workdir)
    with pytest.raises(PastaError, match=message) as caught:
        run_command(model, workdir)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "what", "flags"),
    [
        ("decode", "another base", ["--prompt=why?"]),
        ("evaluate", "another policy", ["--config.baseline.path={base}"]),
        ("sft", "a truncated adapter", ["--config.fresh.layers=0", "--workdir={workdir}/run"]),
        ("preference", "model.safetensors", ["--config.baseline.path={base}", "--workdir={workdir}/run"]),
    ],
)
def test_the_commands_refuse_a_mismatch_in_one_line_with_exit_code_2(script, what, flags, folder, workdir):
    model, message = mismatched(what, folder, workdir)
    variant = "local" if script == "decode" else "tiny"
    named = [f"--config=configs/{script}.py:{variant}"]
    named += [f"--config.model.{name}={value}" for name, value in model.items()]
    process = command(workdir, script, *named, *(flag.format(base=folder / "base", workdir=workdir) for flag in flags))
    assert process.finish(2) == ""
    *before, line = process.errors().splitlines()
    assert line.startswith("error: ")
    assert re.search(message, line)
    known = ("device: ", "decoding with XLA's products, ")
    assert [
        text for text in before if not text.startswith(known) and " … " not in text
    ] == []  # …: after 5 s of silence
