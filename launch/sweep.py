"""Runs of the preference stage over config fields: a grid or a zip, one table, one plot. See configs/sweep.py."""

import itertools
import json
import os
from pathlib import Path

from ml_collections import ConfigDict

from launch import cli
from launch.preference import run
from launch.sft import WORKDIR
from pasta_jax.errors import PastaError
from pasta_jax.pipelines.artifacts import say, write_whole

SHOWN = ("win_rate", "exact", "speedup", "realised", "parallelism")


def main(config: ConfigDict) -> None:
    """All runs, or what is left of them, then the table and the plot."""
    if not WORKDIR.value:
        raise PastaError("--workdir: give a folder for these runs")
    cli.announce_device()
    workdir, wanted, found = Path(WORKDIR.value), points(config), []
    for number, values in enumerate(wanted, start=1):
        say(f"run {number} of {len(wanted)}: {name_of(values)}")
        report = run(config_of(config, values, workdir), workdir / "points" / name_of(values))
        if report is None:
            return
        found.append({"values": {field: str(value) for field, value in values.items()}, "report": report})
    rows = rows_of(found)
    write_whole(workdir / "results.json", json.dumps({"runs": found, "rows": rows}, indent=1) + "\n")
    write_whole(workdir / "results.md", markdown(rows))
    write_whole(workdir / "pareto.svg", plot(rows))
    print(markdown(rows), end="")
    print(json.dumps(rows))


def points(config: ConfigDict) -> list[dict]:
    """The fields' values in each run."""
    fields, values = list(config.fields), [list(some) for some in config.choices]
    if len(fields) != len(values) or not fields:
        raise PastaError(f"config.choices: {len(values)} lists for {len(fields)} fields; give one list for each field")
    if config.mode == "grid":
        chosen = list(itertools.product(*values))
    elif config.mode == "zip":
        if len(set(map(len, values))) > 1:
            raise PastaError(f"config.choices: zip needs lists of one length, not {[len(some) for some in values]}")
        chosen = list(zip(*values, strict=True))
    else:
        raise PastaError(f"config.mode {config.mode!r}: there is none of this name; choose grid or zip")
    return [dict(zip(fields, some, strict=True)) for some in chosen]


def name_of(values: dict) -> str:
    """A run's name, also that of its folder."""
    return ",".join(f"{field.split('+')[0].split('.')[-1]}={value}" for field, value in values.items())


def config_of(config: ConfigDict, values: dict, workdir: Path) -> ConfigDict:
    """The base with a run's values."""
    made = ConfigDict(config.base.to_dict())
    made.steps = made.steps or str(workdir / "steps")
    for joined, value in values.items():
        for field in joined.split("+"):
            *folders, last = field.split(".")
            place = made
            for folder in folders:
                place = place.get(folder, {})
            if last not in place:
                raise PastaError(f"config.fields: {field}: there is no such field in config.base")
            place[last] = value
    return made.lock()


def is_seed(field: str) -> bool:
    return all(part.split(".")[-1] == "seed" for part in field.split("+"))


def rows_of(found: list[dict]) -> list[dict]:
    """A row for each model: runs that differ in seeds alone are one, with the mean and the range of each figure."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for one in found:
        own = ",".join(
            f"{field.split('.')[-1]}={value}" for field, value in one["values"].items() if not is_seed(field)
        )
        models = one["report"]["models"]
        for model in models:
            shared = model["name"] in ("Baseline-SFT", "Pasta-SFT")
            name = model["name"] if shared else own + (f" {model['name']}" if len(models) > 3 else "")
            for answers, values in model.items():
                if answers.startswith("temperature"):
                    groups.setdefault((name, answers), []).append(values)
    rows = []
    for (name, answers), several in groups.items():
        row = {"model": name, "answers": answers, "runs": len(several)}
        for figure in SHOWN:
            values = [one[figure] for one in several if one.get(figure) is not None]
            row[figure] = [round(sum(values) / len(values), 4), min(values), max(values)] if values else None
        rows.append(row)
    order = list(dict.fromkeys(row["answers"] for row in rows))
    return sorted(rows, key=lambda row: order.index(row["answers"]))


def markdown(rows: list[dict]) -> str:
    """The table: means, and behind them the range where there is one."""

    def cell(value) -> str:
        if value is None:
            return "—"
        mean, low, high = value
        return f"{mean:.3f}" + (f" ({low:.3f} to {high:.3f})" if high > low else "")

    lines = ["| model | answers | " + " | ".join(SHOWN) + " |", "|" + "---|" * (2 + len(SHOWN))]
    for row in rows:
        lines.append(f"| {row['model']} | {row['answers']} | " + " | ".join(cell(row[name]) for name in SHOWN) + " |")
    return "\n".join(lines) + "\n"


def plot(rows: list[dict]) -> str:
    """Exactness, or where there is none the win rate, against both speedups; answers at the first temperature asked."""
    from pasta_jax.view.pareto import Point, pareto

    quality = "exact" if any(row["exact"] for row in rows) else "win_rate"
    first = next((row["answers"] for row in rows if row["model"] == "Pasta-SFT"), rows[0]["answers"])
    panels = []
    for across, title in (("speedup", "theoretical speedup"), ("realised", "realised speedup")):
        points = []
        for row in rows:
            own = row["model"] in ("Baseline-SFT", "Pasta-SFT")
            if (
                row[across] is None
                or row[quality] is None
                or (row["answers"] != first and row["model"] != "Baseline-SFT")
            ):
                continue
            (x, *x_range), (y, *y_range) = row[across], row[quality]
            family = (
                row["model"]
                if own
                else f"round {row['model'].rpartition('round ')[2] if 'round ' in row['model'] else ''}"
            )
            name = row["model"].replace("quality_weight=", "λ=").replace("inf", "∞").replace(".0", "")
            points.append(Point(name, family, x, y, tuple(x_range), tuple(y_range)))
        if points or across == "speedup":
            panels.append((title, "exact answers" if quality == "exact" else "win rate", points))
    return pareto(panels)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    cli.run(main, default_config="configs/sweep.py")
