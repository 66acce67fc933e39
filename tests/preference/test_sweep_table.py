"""The table and the plot of a sweep: runs that differ in seeds alone are one row, every model is a dot."""

import dataclasses
import math
from xml.etree import ElementTree

from pasta_jax.preference.report import Row, RunReport
from pasta_jax.preference.sweep import Run, Spread, Sweep, markdown, plot, rows_of
from pasta_jax.view.pareto import HEIGHT, WIDTH

SVG = "{http://www.w3.org/2000/svg}"


def row(kind: str, temperature: float, speedup: float, exact: float) -> Row:
    figures = {"win_rate": 0.5, "exact": exact, "speedup": speedup, "speedup_arithmetic": speedup, "parallelism": 1.0}
    figures |= {"speedup_of_ended": speedup, "length_ratio": speedup, "chunks": 1.0, "cut_off": 0, "realised": None}
    return Row(**figures, kind=kind, round=int(kind == "round"), temperature=temperature, fingerprint="")


def runs(rounds: int = 1) -> list[Run]:
    """Two weights, each with two seeds."""
    runs = []
    for weight, speedup in ((1.0, 2.0), (math.inf, 1.5)):
        for seed in (0, 1):
            rows = [row("baseline", 0.0, 1.0, 0.9), row("sft", 1.0, 1.6, 0.8), row("sft", 0.0, 1.7, 0.85)]
            rows += [row("round", 1.0, speedup + 0.1 * seed, 0.9), row("round", 0.0, 1.9, 0.91)]
            rows += [dataclasses.replace(one, round=number) for number in range(2, rounds + 1) for one in rows[-2:]]
            values = {"sample.seed+train.seed": seed, "score.quality_weight": weight}
            runs.append(Run(values, RunReport(weight, "speedup", "toy", None, None, None, rows)))
    return runs


def test_seeds_share_a_row_in_the_order_of_the_report_by_temperature():
    rows = {(one.model, one.temperature): one for one in rows_of(runs())}
    weights = ("quality_weight=1.0", "quality_weight=inf")
    greedy, sampled = ([(name, temperature) for name in ("Pasta-SFT", *weights)] for temperature in (0.0, 1.0))
    assert list(rows) == [("Baseline-SFT", 0.0), *greedy, *sampled]
    one = rows["quality_weight=1.0", 1.0]
    assert (one.kind, one.round, one.values, one.runs) == ("round", 1, {"score.quality_weight": 1.0}, 2)
    assert (one.speedup, one.realised) == (Spread(2.05, 2.0, 2.1), None)
    assert rows["Pasta-SFT", 0.0].speedup == Spread(1.7, 1.7, 1.7)
    assert rows["Pasta-SFT", 0.0].runs == 4
    assert "2.050 (2.000 to 2.100)" in markdown(Sweep([], rows_of(runs()), {}))


def test_models_that_a_swept_value_changes_are_not_averaged():
    """Two adapters to start from: their own rows, and the one baseline."""
    changed = []
    for name, one in zip("aabb", runs(), strict=True):
        rows = [dataclasses.replace(row, fingerprint=name) if row.kind == "sft" else row for row in one.report.rows]
        changed.append(Run({"model.adapter": name}, dataclasses.replace(one.report, rows=rows)))
    found = {(row.model, row.temperature): row.runs for row in rows_of(changed) if row.kind != "round"}
    several = {(f"Pasta-SFT, adapter={name}", temperature): 2 for temperature in (0.0, 1.0) for name in "ab"}
    assert found == {("Baseline-SFT", 0.0): 4} | several


def test_a_run_that_failed_changes_no_row_of_the_others():
    rows = {(one.model, one.temperature): one.runs for one in rows_of(runs()[:-1]) if one.kind != "round"}
    assert rows == {("Baseline-SFT", 0.0): 3, ("Pasta-SFT", 0.0): 3, ("Pasta-SFT", 1.0): 3}


def test_rows_name_their_round_where_there_are_several():
    rows = rows_of(runs(rounds=2))
    labels = [one.model for one in rows if one.kind == "round" and one.temperature == 1.0]
    assert labels == [f"quality_weight={weight} round {number}" for weight in ("1.0", "inf") for number in (1, 2)]
    assert "λ=1 round 2" in plot(rows, 1.0)


def test_the_plot_has_every_model_inside():
    text = plot(rows_of(runs()), 0.0)
    root = ElementTree.fromstring(text)
    assert (root.get("width"), root.get("height")) == (f"{WIDTH}", f"{HEIGHT}")
    for name in ("Baseline-SFT", "Pasta-SFT", "λ=1, λ=∞"):  # the last two lie at one place
        assert text.count(f">{name}</text>") == 1
    dots = [group for group in root.iter(f"{SVG}g") if ".dot" in group.get("id", "")]
    named = [dot.find(f"{SVG}title").text.split(":")[0] for dot in dots]
    assert named == ["Baseline-SFT", "Pasta-SFT", "λ=1", "λ=∞"]
    for dot in dots:
        (place,) = dot.iter(f"{SVG}use")
        assert 0 < float(place.get("x")) < WIDTH
        assert 0 < float(place.get("y")) < HEIGHT
    assert "λ=1, λ=∞" not in plot(rows_of(runs()), 1.0), "of sampled answers, they differ"
