"""`pasta.teach`: the whole of launch.teach as one function."""

import os
from collections.abc import Iterable
from pathlib import Path

from pasta_jax.device import compilation_cache
from pasta_jax.errors import PastaError
from pasta_jax.files.validated import require_unicode
from pasta_jax.models.config import PRESETS
from pasta_jax.progress import break_silence
from pasta_jax.runs.settings import changed
from pasta_jax.teaching import prompts as chosen
from pasta_jax.teaching import run
from pasta_jax.teaching.settings import TeachSettings
from pasta_jax.weights.settings import ModelSource


def teach(
    model: str | os.PathLike[str],
    prompts: str | os.PathLike[str] | Iterable[str] | None,
    workdir: str | os.PathLike[str],
    **settings: object,
) -> Path:
    """Teach a model to fork from its own answers to prompts; the folder of the adapter.

    `model` is a preset, a GGUF file, a Hugging Face folder or its id; `prompts` are texts, a file of JSON lines, or
    None for ours. The same call resumes what was stopped. Settings are those of configs/teach.py, by dotted name:
    `**{"training.epochs": 3}`.
    """
    if not isinstance(model, str | os.PathLike):  # perhaps what load_model returns, as for the other functions
        raise PastaError(f"teach: model {type(model).__name__}: expected a preset, a path or an id")
    if not isinstance(workdir, str | os.PathLike):
        raise PastaError(f"teach: workdir {workdir!r}: expected a path")
    name, folder = os.fspath(model), Path(workdir)
    source = ModelSource(preset=name) if name in PRESETS else ModelSource(path=name)
    file, lines = "" if prompts is None else prompts, ""
    if not isinstance(file, str | os.PathLike):
        file, lines = folder / "given.jsonl", _lines(file)
    asked = changed(TeachSettings(source), "teach", **{"prompts.file": os.fspath(file)} | settings)
    compilation_cache.announce()
    with break_silence(""):
        adapter = run.run(asked, folder, given=lines)
    assert adapter is not None  # nothing stops it
    return adapter


def _lines(prompts: object) -> str:
    """Prompts as the lines of a file."""
    texts = list(prompts) if isinstance(prompts, Iterable) else []
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise PastaError("teach: prompts must be texts that are not blank; pass at least one")
    for text in texts:
        require_unicode(text, f"teach: prompt {ascii(text)[:60]}")
    return chosen.of_prompts(texts)
