"""Sweeps: their points; and where runs fail, the others' table and plot, and an error that names the failed ones."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from configs import sweep as sweep_config
from pasta_jax.errors import PastaError
from pasta_jax.llm.client import EndpointDown
from pasta_jax.preference import sweep
from pasta_jax.preference.report import RunReport
from pasta_jax.preference.settings import SweepSettings
from pasta_jax.runs.settings import changed
from pasta_jax.weights.load import export_model
from tests import ROOT
from tests.helpers.models import BABBLING, babbler
from tests.helpers.requires import requires_ray
from tests.preference.test_sweep_table import row


def tiny(path: Path, **changes: object) -> SweepSettings:
    """The tiny sweep from one model."""
    model = {"path": str(path)}
    return changed(sweep_config.tiny(), base={"model": model, "baseline": model}, **changes)


@pytest.fixture
def swept(monkeypatch, tmp_path):
    """Sweep three weights; a run has its weight's outcome: an error, None for a report, or why that has no pairs."""
    started = []

    def sweep_with(*outcomes: Exception | str | None, model: Path = tmp_path / "model") -> sweep.Sweep | None:
        def run_one(stage, workdir, watch):
            started.append(workdir.name)
            if isinstance(outcome := outcomes[len(started) - 1], BaseException):
                raise outcome
            rows = [row(kind, 0.0, 0.5, 0.5) for kind in ("baseline", "round")]
            rows = rows[: 1 if outcome else 2]
            return RunReport(stage.score.quality_weight, "speedup", "toy", None, None, None, rows, outcome or "")

        monkeypatch.setattr(sweep, "run_preference", run_one)
        return sweep.run(tiny(model, choices=((1.0, 2.0, 4.0),)), tmp_path / "sweep")

    sweep_with.started = started
    return sweep_with


def test_a_run_that_fails_leaves_the_others_table_and_plot(swept, tmp_path, capsys):
    """A run without pairs is marked in the table, and no failure."""
    results = swept("all were cut off", PastaError("no pair"), None)
    assert [run.values["score.quality_weight"] for run in results.runs] == [1.0, 4.0]
    assert results.no_pairs() == {"quality_weight=1.0": "all were cut off"}
    table = (tmp_path / "sweep/results.md").read_text()
    assert "| quality_weight=1.0 | no pairs | —" in table
    assert "quality_weight=4.0" in table
    assert "quality_weight=2.0" not in table
    assert "λ=4" in (tmp_path / "sweep/pareto.svg").read_text()
    assert json.loads((tmp_path / "sweep/results.json").read_text())["failed"] == {"quality_weight=2.0": "no pair"}
    assert "run 2 of 3 failed: no pair\n" in capsys.readouterr().err
    with pytest.raises(PastaError, match=r"^1 of 3 runs failed, .*: quality_weight=2\.0: no pair$") as failed:
        results.refuse_failed()
    assert failed.value.exit_code == 1


def test_whatever_ends_a_sweep_leaves_a_table_of_the_finished_runs(swept, tmp_path):
    for ending in (EndpointDown("down"), KeyboardInterrupt()):
        swept.started.clear()
        with pytest.raises(type(ending)):
            swept(None, ending)
        assert "quality_weight=1.0" in (tmp_path / "sweep/results.md").read_text()
    assert len(swept.started) == 2


def test_a_sweep_without_a_finished_run_names_all(swept, tmp_path):
    errors = [PastaError(f"error {number}") for number in range(3)]
    with pytest.raises(PastaError, match=r"^3 of 3 runs failed.*=1\.0: error 0; .*=2\.0: error 1; .*=4\.0: error 2$"):
        swept(*errors)
    assert not (tmp_path / "sweep/results.md").exists()


def test_a_model_of_another_level_is_refused_before_any_run(swept, tmp_path):
    (tmp_path / "config.json").write_text('{"data": {"toy": "medium"}}')
    with pytest.raises(PastaError, match=r"^config\.base\.prompts\.toy: small, but .* was trained on medium; set"):
        swept(None, None, None)
    assert swept.started == []


def test_a_missing_ray_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PastaError, match=r"^config\.executor=ray: Ray is not installed; bash launch/setup.sh --ray$"):
        sweep.run(tiny(tmp_path / "model", executor="ray"), tmp_path / "sweep")


def test_commands_do_one_run_each(tmp_path, monkeypatch):
    chosen, workdir = tiny(tmp_path / "a model"), tmp_path / "sweep"
    argv = ["python", "-m", "launch.sweep", "--config=configs/sweep.py:tiny", "--config.executor=commands", "--x=a b"]
    lines = [shlex.split(line) for line in sweep.commands(chosen, workdir, argv)]
    assert [line[:-2] for line in lines] == [argv, argv]
    names = ["quality_weight=1.0", "quality_weight=inf"]
    assert [line[-2:] for line in lines] == [["--config.executor=local", f"--point={name}"] for name in names]

    done = []
    monkeypatch.setattr(sweep, "run_preference", lambda stage, folder, watch: done.append((stage, folder)))
    sweep.run_point(chosen, workdir, names[1])
    [(stage, folder)] = done
    assert (stage.score.quality_weight, folder) == (float("inf"), workdir / "points" / names[1])
    with pytest.raises(PastaError, match=r"^--point=none: no run of this sweep; choose from quality_weight=1\.0, "):
        sweep.run_point(chosen, workdir, "none")


def test_a_sweep_without_held_out_prompts_is_refused():
    with pytest.raises(PastaError, match=r"^config\.base\.evaluate\.count is 0: a sweep compares models"):
        sweep.points(changed(sweep_config.toy_seeds(), base={"evaluate": {"count": 0}}))


def test_points_are_a_grid_or_a_zip():
    config = sweep_config.toy_seeds()
    assert len(sweep.points(config)) == 15
    with pytest.raises(PastaError, match="one length"):
        sweep.points(changed(config, mode="zip"))
    with pytest.raises(PastaError, match="one of its lists is empty"):
        sweep.points(changed(config, choices=((), (1.0,))))
    swept = changed(config, mode="zip", choices=((0, 1), (1.0, 2.0)))
    points = sweep.points(swept)
    assert [list(point.values()) for point in points] == [[0, 1.0], [1, 2.0]]
    point = sweep.settings_of(swept.base, points[1], Path("w"))
    assert (point.sample.seed, point.train.seed, point.score.quality_weight) == (1, 1, 2.0)
    assert point.artifacts == str(Path("w/artifacts").absolute())


def test_runs_share_folders_whatever_the_current_one_of_a_worker(tmp_path):
    chosen = changed(tiny(tmp_path / "model"), **{"base.artifacts": "shared"})
    point, _ = sweep.points_of(chosen, Path("w"))
    assert point.workdir == Path("w/points/quality_weight=1.0").absolute()
    assert point.stage.artifacts == str(Path("shared").absolute())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"score.weight": 1}, r"config\.base\.score\.weight: unknown key; known keys are "),
        ({"rounds.first": 1}, r"config\.base\.rounds: expected `int`"),
        ({"score.efficiency": "wall"}, r"config\.base\.score\.efficiency: unknown value 'wall'"),
        ({"train.rows": 0}, r"config\.base\.train\.rows: "),
    ],
)
def test_invalid_points_are_refused(values, message):
    with pytest.raises(PastaError, match=message):
        sweep.settings_of(sweep_config.toy().base, values, Path("w"))


def kill_first(points: Path, killed: list[int], stop: threading.Event) -> None:
    """Kill the process of the first run whose lock has a second one beside it."""
    while not stop.wait(0.1):
        locks = [path.read_text().split() for path in points.glob("*/run.lock")]
        if len(locks) > 1 and all(locks):
            killed.extend(int(process) for _, process in locks)
            os.kill(killed[0], signal.SIGKILL)
            return


@pytest.mark.extended
@requires_ray
def test_a_sweep_on_ray_survives_a_killed_worker(tmp_path):
    """Six runs on two workers, one of which is killed while it computes, end in one table."""
    export_model(babbler(), tmp_path / "model")
    workdir, killed, stop = tmp_path / "sweep", [], threading.Event()
    weights = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    base = dict.fromkeys(("model.path", "baseline.path"), tmp_path / "model") | BABBLING
    flags = [f"--config.base.{key}={value}" for key, value in base.items()]
    flags += [f"--config.choices=({weights},)", "--config.executor=ray", "--config.ray.workers=2"]
    killer = threading.Thread(target=kill_first, args=(workdir / "points", killed, stop))
    killer.start()
    argv = [sys.executable, "-m", "launch.sweep", "--config=configs/sweep.py:tiny", f"--workdir={workdir}", *flags]
    result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    stop.set()
    killer.join()
    assert result.returncode == 0, result.stderr
    assert len(set(killed)) == 2  # two workers; the first was killed
    last = json.loads(result.stdout.splitlines()[-1])
    assert last == {"results": str(workdir / "results.json"), "runs": 6, "no_pairs": {}, "failed": {}}
    rows = json.loads((workdir / "results.json").read_text())["rows"]
    expected = ["Baseline-SFT", "Pasta-SFT", *(f"quality_weight={weight}" for weight in weights)]
    assert [row["model"] for row in rows] == expected
    assert [row["runs"] for row in rows] == [6, 6, 1, 1, 1, 1, 1, 1]
    assert (workdir / "results.md").read_text().count("\n| ") == len(expected)
    samples = [*(workdir / "artifacts").glob("sample-*")]
    assert len(samples) == 1  # computed once for all
    assert not [*(workdir / "artifacts").glob("*.lock"), *(workdir / "artifacts").glob("*.part")]
