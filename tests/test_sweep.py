"""A sweep whose runs fail: the others' table and plot are written, and the error names the failed ones."""

import json
from pathlib import Path

import pytest

from configs import sweep as sweep_config
from pasta_jax import settings
from pasta_jax.errors import PastaError
from pasta_jax.llm import EndpointDown
from pasta_jax.pipelines import sweep
from pasta_jax.pipelines.preference.report import Report, Row


@pytest.fixture
def swept(monkeypatch, tmp_path):
    """Sweep three weights; a run has its weight's outcome, an error or None for a report."""
    started = []

    def sweep_with(*outcomes: Exception | None, model: Path = tmp_path / "model") -> sweep.Sweep | None:
        def run_one(stage, workdir, watch):
            started.append(workdir.name)
            if error := outcomes[len(started) - 1]:
                raise error
            figures = dict.fromkeys(("win_rate", "exact", "speedup", "speedup_arithmetic", "parallelism"), 0.5)
            figures |= {"chunks": 1.0, "cut_off": 0, "realised": None, "temperature": 0.0, "fingerprint": ""}
            rows = [Row(kind="baseline", round=0, **figures), Row(kind="round", round=1, **figures)]
            return Report(stage.score.quality_weight, "speedup", "toy", None, None, None, rows)

        monkeypatch.setattr(sweep, "run_preference", run_one)
        config = sweep_config.get_config("tiny")
        config.base.model.path = config.base.baseline.path = str(model)
        config.choices = ((1.0, 2.0, 4.0),)
        return sweep.run(settings.read(config, sweep.Settings), tmp_path / "sweep")

    sweep_with.started = started
    return sweep_with


def test_a_run_that_fails_leaves_the_others_table_and_plot(swept, tmp_path, capsys):
    results = swept(None, PastaError("no pair"), None)
    assert [run.values["score.quality_weight"] for run in results.runs] == [1.0, 4.0]
    table = (tmp_path / "sweep/results.md").read_text()
    assert "quality_weight=1.0" in table
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
