"""Teach a model to fork from its own answers: choose prompts, run the stages that are left, write what came of them.

    WORKDIR/prompts.jsonl, held_out.jsonl   what is learnt from, and what is evaluated on
    WORKDIR/answers*.jsonl, complete.jsonl  the model's own answers; those that ended by themselves
    WORKDIR/records                         them annotated (launch.annotate)
    WORKDIR/sft                             the training (launch.sft); sft/adapter is a PEFT folder with a card
    WORKDIR/preference                      rounds of preference training (launch.preference), if they are asked for
    WORKDIR/evaluation                      beside the model as it was (launch.evaluate); report.html
    WORKDIR/side_by_side.md                 ten held-out prompts with both answers

Each stage resumes where it was stopped, and is skipped once its result is there. Another choice of settings in the same
folder is refused.
"""

import gc
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from pasta_jax.annotate import pipeline
from pasta_jax.answer import run as answer
from pasta_jax.answer.job import Outputs, read_job
from pasta_jax.command.console import as_typed
from pasta_jax.errors import PastaError
from pasta_jax.evaluate import run as evaluation
from pasta_jax.files.atomic import write_whole
from pasta_jax.files.jsonl import read_records
from pasta_jax.files.remote import path_of
from pasta_jax.files.workdir import claim
from pasta_jax.preference import run as preference
from pasta_jax.progress import say
from pasta_jax.runs import settings as run_config
from pasta_jax.teaching import beside, prompts
from pasta_jax.teaching.settings import TeachSettings
from pasta_jax.teaching.stages import (
    BASE,
    BESIDE,
    COMPLETE,
    EVALUATION,
    GIVEN,
    HELD_OUT,
    PROMPTS,
    Stage,
    adapter_of,
    answer_files,
    fingerprint_of_base,
    refuse_untrainable,
    stages,
)
from pasta_jax.train import sft
from pasta_jax.train.fit import Watch, unwatched

FEW = 100  # records; 22 made SmolLM2 worse without a fork, 265 taught Qwen (docs/YOUR_MODEL.md)


def run(settings: TeachSettings, workdir: Path, watch: Watch = unwatched, given: str = "") -> Path | None:
    """Teach, from wherever an earlier call was stopped; the adapter's folder, or None if it was stopped.

    `watch` is entered around trainings, which then save and stop; the other stages keep what they have as they go.
    `given`: lines that config.prompts.file is to have, if a caller's texts are its prompts.
    """
    with claim(workdir):
        plain = run_config.plain(settings)
        run_config.refuse_other(workdir, plain, run_config.plain(TeachSettings()))
        todo = stages(settings, workdir)
        if given:
            write_given(path_of(settings.prompts.file), given, workdir)
        if (workdir / PROMPTS).exists():
            refuse_others(path_of(settings.prompts.file), workdir)
        else:  # a later start keeps them, whatever has been installed since
            refuse_untrainable(settings)
            chosen = choose_prompts(settings)  # if it is refused, other settings are not another run's
            run_config.write(workdir, plain)
            write_whole(workdir / BASE, fingerprint_of_base(settings.model))
            if chosen.given:
                write_whole(workdir / GIVEN, chosen.given)
            write_whole(workdir / HELD_OUT, prompts.of_prompts(chosen.held_out))
            write_whole(workdir / PROMPTS, prompts.of_prompts(chosen.train))
        for number, stage in enumerate(todo, start=1):
            say(f"\nstage {number} of {len(todo)}, {stage.name}" + (": done before" if stage.done.exists() else ""))
            if not stage.done.exists():
                refuse_other_base(settings, workdir)
                say(stage.command)
                began = time.perf_counter()
                if not perform(stage, watch):
                    return None
                gc.collect()  # a model's memory is returned before the next one is loaded
                say(f"{stage.name}: {time.perf_counter() - began:.0f} s")
            if stage.done == answer_files(settings, workdir)[-1]:
                keep_complete(answer_files(settings, workdir), workdir / COMPLETE)
    return adapter_of(settings, workdir)


def write_given(file: Path, lines: str, workdir: Path) -> None:
    """Write a caller's prompts, unless others were chosen from already."""
    if (workdir / PROMPTS).exists() and file.exists() and file.read_text("utf-8") != lines:
        raise PastaError(f"{workdir}: was started with other prompts; use another workdir, or the same prompts")
    write_whole(file, lines)


def refuse_others(file: Path, workdir: Path) -> None:
    """Refuse a file whose prompts have changed since they were chosen from."""
    if not (file.is_file() and (given := workdir / GIVEN).is_file()):
        return
    if given.read_text("utf-8") != prompts.fingerprint(str(file)):
        raise PastaError(f"{file}: {workdir} was started with other prompts; use another workdir, or the same prompts")


def refuse_other_base(settings: TeachSettings, workdir: Path) -> None:
    """Refuse another model where the first one was: what is done would be of that, and what is left of this."""
    if not (base := workdir / BASE).is_file():  # of an earlier version
        return
    if base.read_text("utf-8") != fingerprint_of_base(settings.model):
        raise PastaError(
            f"{settings.model.path or settings.model.preset}: {workdir} was started with another model there; "
            "use another workdir, or the same model"
        )


def choose_prompts(settings: TeachSettings) -> prompts.Prompts:
    """What is learnt from and evaluated on."""
    chosen = prompts.choose(settings.prompts, prompts.room(settings))
    if settings.evaluate and not chosen.held_out:
        raise PastaError(
            f"config.prompts: of {len(chosen.train)} none is held out to evaluate with; name more prompts, raise "
            "config.prompts.held_out, or set config.evaluate=False"
        )
    left_out = ", ".join(f"{reason}: {count}" for reason, count in chosen.left_out.items() if count)
    of_file = f"; left out: {left_out}" if settings.prompts.file and left_out else ""
    say(f"{len(chosen.train)} prompts to learn from, {len(chosen.held_out)} to evaluate on{of_file}")
    return chosen


def keep_complete(files: Sequence[Path], target: Path) -> None:
    """Keep the answers that ended by themselves: what was cut off would teach to break off."""
    rows = [row for file in files for _, row in read_records(file, dict, "answer again")]
    complete = [row for row in rows if row.get("finish_reason") == "stop"]
    if not complete:
        raise PastaError(f"{files[0]}: no answer ended by itself; raise config.answers.max_tokens")
    say(f"{len(complete)} of {len(rows)} answers ended by themselves")
    if 10 * len(complete) < len(rows):
        say("few: base models go on; take one that follows instructions, or raise config.answers.max_tokens")
    write_whole(target, prompts.lines(complete))


def perform(stage: Stage, watch: Watch) -> bool:
    """What the stage's command does; False if it was stopped."""
    settings = stage.settings()
    match stage.script:
        case "decode":
            given = {"prompts_file": stage.flags["prompts_file"], "outputs": Outputs(stage.flags["output"])}
            answer.run(settings, read_job(**given, live="no", started=time.perf_counter()))
        case "annotate":
            summary = pipeline.run(settings, stage.flags["output"])
            if summary is not None:
                say(summary.text())
                if not summary.kept:
                    raise PastaError(
                        f"{stage.flags['output']}: no record was kept; refused.jsonl there says why of each"
                    )
                if summary.kept < FEW:
                    say(
                        f"{summary.kept} records are few: the adapter may harm the model and not fork; name more "
                        "prompts, or raise config.answers.samples"
                    )
        case "sft":
            with watch() as stopping:
                sft.run(settings, stage.flags["workdir"], stopping, stage.command)
                return stage.done.exists() and not stopping()
        case "preference":
            report = preference.run(settings, stage.flags["workdir"], watch, stage.command)
            if report is None:
                return False
            if report.no_pairs and stage.done.exists():  # an earlier round's adapter, as a later start would find it
                say(f"the last round had nothing to learn from: {report.no_pairs}")
            elif report.no_pairs:
                raise PastaError(f"{report.no_pairs}; or teach without preference_rounds, in another workdir")
        case "evaluate":
            result = evaluation.run(settings, stage.flags["workdir"])
            if result is not None:
                say(result.report.text())
                write_whole(stage.done, beside.table(result))
    return True


def closing(settings: TeachSettings, workdir: Path, adapter: Path) -> str:
    """What came of it, and the command to try it."""
    named = f"{settings.model.named()} --config.model.adapter={shlex.quote(str(adapter))}"
    chat = f"python -m launch.chat --config=configs/decode.py:local {named}"
    lines = [f"adapter: {adapter}", f"next: {as_typed(chat)}"]
    if settings.evaluate:
        lines += [f"side by side: {workdir / BESIDE}", f"report: {workdir / EVALUATION / 'report.html'}"]
    return "\n".join(lines)
