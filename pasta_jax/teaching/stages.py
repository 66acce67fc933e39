"""The stages of teaching: each a plain command of this project, with its settings, and what shows that it is done."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pasta_jax.command import configs
from pasta_jax.command.console import ROOT, as_typed
from pasta_jax.data.batches import Layout
from pasta_jax.decode.request import SEEDS
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints, packages
from pasta_jax.files.gguf import GGUF
from pasta_jax.files.validated import reading
from pasta_jax.models.config import PRESETS, TransformerConfig
from pasta_jax.models.sharding import sharing_rows, training_mesh
from pasta_jax.runs.settings import changed, flat, plain
from pasta_jax.teaching.settings import TeachSettings
from pasta_jax.train.settings import refuse_unclear_end
from pasta_jax.weights import config_file, gguf_model
from pasta_jax.weights.adapter import refuse_experts, refuse_idle
from pasta_jax.weights.generation_config import read_defaults
from pasta_jax.weights.load import PACKAGED, require_named, weights_at
from pasta_jax.weights.settings import ModelSource

# The files and folders of a workdir, in the order in which they appear.
BASE = "model.txt"  # the fingerprint of its files
GIVEN = "prompts_file.txt"  # the fingerprint of a user's prompts
PROMPTS, HELD_OUT, COMPLETE = "prompts.jsonl", "held_out.jsonl", "complete.jsonl"
PROPOSED, RECORDS, TRAINED = "proposed", "records", "sft"
FORKED, CORRECTED, CORRECTING = "forked.jsonl", "corrected", "corrected_sft"
PREFERRED = "preference"
EVALUATION, BESIDE = "evaluation", "side_by_side.md"
WEIGHTS = "adapter_model.safetensors"
APART = 10**6  # from the seeds of one sample of all prompts to those of the next: more than there are prompts
OTHERS = "baseline.", "judge.checked.untrained."  # what else is the model as it was, in settings of preferences


@dataclasses.dataclass(frozen=True)
class Stage:
    """One command: launch.SCRIPT with a variant's settings, some of them changed."""

    name: str
    script: str
    variant: str
    changes: Mapping[str, Any]  # of settings, by dotted name
    flags: Mapping[str, Any]
    done: Path  # exists once the stage is done: the command's last file, or what is made of the evaluation

    def settings(self) -> Any:
        """What the command would read from its config and flags."""
        return changed(self._unchanged(), **self.changes)

    def _unchanged(self) -> Any:
        return configs.load(f"configs/{self.variant}", ROOT)[1]

    @property
    def command(self) -> str:
        """As a user would type it: without what the variant states anyway."""
        stated = flat(plain(self._unchanged()))
        of_config = {f"config.{name}": value for name, value in self.changes.items() if _differs(stated[name], value)}
        flags = [f"--{name}={_plain(value)}" for name, value in (of_config | dict(self.flags)).items()]
        return as_typed(
            shlex.join(["python", "-m", f"launch.{self.script}", f"--config=configs/{self.variant}", *flags])
        )


def stages(settings: TeachSettings, workdir: Path) -> list[Stage]:
    """The stages after the choice of prompts, in order."""
    base = _of_model(settings.model)
    decoded = base | {"model.bits": settings.model.bits}
    training = settings.training
    adapter = workdir / TRAINED / "adapter"

    def annotate(name: str, variant: str, folder: str, **changes: Any) -> Stage:
        return Stage(
            name, "annotate", f"annotate.py:{variant}", changes, {"output": workdir / folder},
            workdir / folder / "dataset" / "about.json",
        )  # fmt: skip

    def train(name: str, records: str, folder: str, **changes: Any) -> Stage:
        from_records = {"data.records": str(workdir / records)} | changes
        return Stage(
            name, "sft", "sft.py:taught", base | _training(settings) | from_records, {"workdir": workdir / folder},
            workdir / folder / "adapter" / WEIGHTS,
        )  # fmt: skip

    answers = {
        "decoding.lanes": settings.answers.lanes,
        "decoding.widths": (),
        "request.max_tokens": settings.answers.max_tokens,
    }
    for name in ("temperature", "top_p"):
        if (value := getattr(settings.answers, name)) is not None:
            answers[f"request.{name}"] = value
    model = _of_model(settings.model, dtype="")
    found = [
        Stage(
            path.stem, "decode", "decode.py:local",
            decoded
            | answers
            | {"request.seed": (settings.seed + APART * n) % SEEDS, "decoding.rows": 1, "request.sequential": True},
            {"prompts_file": workdir / PROMPTS, "output": path}, path,
        )
        for n, path in enumerate(answer_files(settings, workdir))
    ]  # fmt: skip
    # All prompts are learnt from, and what is held out is another file.
    of_all = {"max_tokens": max(training.lengths), "validation_percent": 0} | model
    form = {"form.unforked": settings.unforked, "form.finished": False}
    kept = form if settings.filtered else {}
    if settings.answers.samples > 1:
        if not _temperature(settings):
            raise PastaError(
                "config.answers.samples: at temperature 0, all answers to a prompt would be the same; set "
                "config.answers.temperature above 0, or one sample"
            )
        kept = kept | {"drop_duplicates": False}
    found.append(
        annotate(
            "records", "answers" if settings.filtered else "local", PROPOSED if settings.weigh else RECORDS,
            source=str(workdir / COMPLETE), **kept, **of_all,
        )
    )  # fmt: skip
    if settings.weigh:
        proposed = str(workdir / PROPOSED / "records.jsonl")
        variant, of_form = ("weighed", form) if settings.filtered else ("likelihood", {})
        weighing = {"records": proposed, "weighing.lengths": training.lengths} | of_form
        found.append(annotate("independent chunks", variant, RECORDS, **weighing, **of_all))
    length = {"train.epochs": training.epochs, "train.steps": training.steps}
    found.append(train("training", RECORDS, TRAINED, **length))
    if settings.corrected:
        on_base = base | {"model.adapter": str(adapter)}
        further = {"train.epochs": 0, "train.steps": settings.corrected, "data.stray": 0.5}
        found += [
            Stage(
                "forked answers", "decode", "decode.py:local",
                on_base | decoded | answers | {"request.seed": settings.seed},
                {"prompts_file": workdir / PROMPTS, "output": workdir / FORKED}, workdir / FORKED,
            ),
            annotate(
                "corrected chunks", "own", CORRECTED, source=str(workdir / FORKED), **_of_answers(), **form, **of_all,
            ),
            train("further training", CORRECTED, CORRECTING, **{"model.adapter": str(adapter)}, **further),
        ]  # fmt: skip
        adapter = workdir / CORRECTING / "adapter"
    if settings.preference_rounds:
        found.append(_preference(settings, workdir, adapter))
        adapter = workdir / PREFERRED / "adapter"
    if settings.evaluate:
        systems = decoded | {"model.adapter": str(adapter)}
        systems |= {name.replace("model.", "baseline."): value for name, value in decoded.items()}
        found.append(
            Stage(
                "evaluation", "evaluate", "evaluate.py:taught",
                systems | {"prompts.file": str(workdir / HELD_OUT), "request.max_tokens": settings.evaluate_tokens},
                {"workdir": workdir / EVALUATION}, workdir / BESIDE,
            )
        )  # fmt: skip
    return [*map(_as_here, found)]


def _as_here(stage: Stage) -> Stage:
    """The stage, on one of several devices where these can't share the rows of its batches."""
    if stage.script not in ("sft", "preference"):
        return stage
    settings = stage.settings()
    rows = settings.data.rows if stage.script == "sft" else settings.train.rows
    if rows % sharing_rows(training_mesh(settings.mesh)) == 0:
        return stage
    return dataclasses.replace(stage, changes={**stage.changes, "mesh.data": 1})


def file_of(model: ModelSource) -> Path:
    """The model's Hugging Face folder or GGUF file."""
    return weights_at(model.path) if model.path else packages.path(model.preset)


def fingerprint_of_base(model: ModelSource) -> str:
    """What tells a model from another that takes its place, without loading it."""
    path = file_of(model)
    with reading(path, "make it readable"):
        return fingerprints.of_pieces(sorted(path.glob("*.safetensors")) if path.is_dir() else [path])


def config_of(model: ModelSource) -> TransformerConfig:
    """The architecture, without the weights."""
    require_named(model.preset, model.path)
    if model.preset and (model.preset in PACKAGED or not model.path):
        return PRESETS[model.preset]
    path = file_of(model)
    return config_file.read_config(path)[1] if path.is_dir() else gguf_model.read_config(GGUF.open(path))[1]


def refuse_untrainable(settings: TeachSettings) -> None:
    """Raise for what training would refuse, which begins after all answers are written."""
    training, place = settings.training, "config.training"
    refuse_unclear_end(place, training.steps, training.epochs)
    Layout(training.lengths, training.rows, packed=True, too_long="drop")
    if not training.adapter.rank:
        raise PastaError(f"{place}.adapter.rank 0: what is taught is an adapter; set it to 1 or more")
    refuse_idle(f"{place}.adapter", training.adapter)
    if config_of(settings.model).experts:
        refuse_experts(f"{place}.adapter", training.adapter.targets)


def _temperature(settings: TeachSettings) -> float:
    """Of the model's answers to learn from."""
    if settings.answers.temperature is not None:
        return settings.answers.temperature
    own = read_defaults(file_of(settings.model))
    return own.temperature if own else 0.0


def _of_answers() -> dict[str, Any]:
    """What the variant `answers` accepts, for another annotator of a model's answers."""
    stated = flat(plain(configs.load("configs/annotate.py:answers", ROOT)[1]))
    names = ("prompt_words", "response_words", "drop_evaluation", "form.ascii", "form.named", "form.short_items")
    return {name: tuple(value) if isinstance(value := stated[name], list) else value for name in names}


def answer_files(settings: TeachSettings, workdir: Path) -> list[Path]:
    """The model's own answers, one to each prompt in a file."""
    return [workdir / f"answers{f'-{n}' if n else ''}.jsonl" for n in range(settings.answers.samples)]


def adapter_of(settings: TeachSettings, workdir: Path) -> Path:
    """The adapter that the stages end with."""
    last = PREFERRED if settings.preference_rounds else CORRECTING if settings.corrected else TRAINED
    return workdir / last / "adapter"


def _preference(settings: TeachSettings, workdir: Path, adapter: Path) -> Stage:
    """Answers with forks compete, beside those of the model as it was."""
    model, training, lanes = _of_model(settings.model, dtype=""), settings.training, settings.answers.lanes
    of_others = {name.replace("model.", other): value for name, value in model.items() for other in OTHERS}
    changes = {
        "model.adapter": str(adapter),
        "rounds": settings.preference_rounds,
        "prompts.file": str(workdir / PROMPTS),
        "prompts.count": settings.prompts.count,
        "sample.seed": settings.seed,
        "decoding.lanes": lanes,
        "decoding.packed": (lanes, 2 * lanes),
        "request.max_tokens": settings.answers.max_tokens,
        **{f"adapter.{name}": value for name, value in vars(training.adapter).items()},
        "train.lengths": training.lengths,
        "train.seed": settings.seed,
    }
    if settings.answers.temperature is not None:
        changes["sample.baseline_temperature"] = settings.answers.temperature
    return Stage(
        "preference", "preference", "preference.py:taught", model | of_others | changes,
        {"workdir": workdir / PREFERRED}, workdir / PREFERRED / "adapter" / WEIGHTS,
    )  # fmt: skip


def _training(settings: TeachSettings) -> dict[str, Any]:
    training = settings.training
    return {
        "model.dtype": training.base,
        **{f"adapter.{name}": value for name, value in vars(training.adapter).items()},
        **{f"data.{name}": getattr(training, name) for name in ("lengths", "rows", "stray")},
        **{f"train.{name}": getattr(training, name) for name in ("learning_rate", "warmup", "keep_products")},
        "train.seed": settings.seed,
        "weights.legal": training.legal,
        "weights.length": training.length,
        "every.save": training.save,
    }


def _of_model(model: ModelSource, **others: str) -> dict[str, Any]:
    """What names a model in settings; an empty one is not a change. `bits` is left out: decoding alone reads them."""
    fields = {"preset": model.preset, "path": model.path, "dtype": model.dtype} | others
    for name, default in vars(ModelSource()).items():
        if name not in fields and name != "bits" and getattr(model, name) != default:
            raise PastaError(f"config.model.{name}: the stages don't read it; leave it out")
    return {f"model.{name}": value for name, value in fields.items() if value or name == "preset"}


def _differs(stated: Any, value: Any) -> bool:
    return stated != (list(value) if isinstance(value, tuple) else value)


def _plain(value: Any) -> str:
    return str(tuple(value)).replace(" ", "") if isinstance(value, list | tuple) else str(value)
