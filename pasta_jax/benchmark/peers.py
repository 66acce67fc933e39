"""The same work by other runtimes on the same weights: steps of transformers on torch and llama.cpp; its server."""

import functools
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np

from pasta_jax.benchmark.steps import Runner
from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.files.atomic import replacing
from pasta_jax.files.gguf import GGUF
from pasta_jax.models.parameters import unstack
from pasta_jax.progress import say
from pasta_jax.weights import huggingface
from pasta_jax.weights.load import PACKAGED, load_model
from pasta_jax.weights.model import BLOCKS, Model
from pasta_jax.weights.settings import ModelSource


def require(source: ModelSource, packages: Sequence[str]) -> None:
    """Refuse --peers if packages of the peers are not installed, or for a model that the peers cannot read."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise PastaError(f"--peers needs {package}: bash launch/setup.sh --dev")
    if source.preset not in PACKAGED or source.path or source.adapter:
        raise PastaError(
            f"--peers: the peers read packaged weights only ({', '.join(PACKAGED)}); "
            "name one as config.model.preset and leave config.model.path and .adapter empty"
        )


def runners(model: Model, widths: Sequence[int], slots: int, prompt: int, steps: int) -> dict[str, dict[int, Runner]]:
    """Runners of steps of each peer by the number of rows, on the same weights: see `files`."""
    theirs, word = files(model), model.tokenizer.encode(" word")[0]
    peers: dict[str, dict[int, Runner]] = {name: {} for name in theirs}
    for rows in widths:
        say(f"preparing the peers' step of {rows} row(s)")
        if "transformers" in theirs:
            peers["transformers"][rows] = transformers_runner(theirs["transformers"], word, rows, prompt, steps)
        peers["llama_cpp"][rows] = llama_cpp_runner(theirs["llama_cpp"], word, rows, slots, prompt, steps)
    return peers


def prefill_runners(model: Model, lengths: Sequence[int], slots: int) -> dict[str, dict[int, Runner]]:
    """Runners of prompts of each peer by the number of tokens."""
    theirs, word = files(model), model.tokenizer.encode(" word")[0]
    peers: dict[str, dict[int, Runner]] = {name: {} for name in theirs}
    for length in lengths:
        if "transformers" in theirs:
            peers["transformers"][length] = transformers_prefill(theirs["transformers"], word, length)
        peers["llama_cpp"][length] = llama_cpp_prefill(theirs["llama_cpp"], word, length, slots)
    return peers


def files(model: Model) -> dict[str, Path]:
    """What each peer reads: the same weights in float32, or the blocks of their file, which one of them can read."""
    if model.precision == BLOCKS:
        return {"llama_cpp": packages.path(model.name)}
    model = load_model(model.name, "")  # with kernels as in files, not as for decoding alone
    return {"transformers": exported(model), "llama_cpp": float32_gguf(model)}


def transformers_runner(folder: Path, word: int, rows: int, prompt: int, steps: int) -> Runner:
    """Feed `rows` tokens per step to a growing cache, greedily, as `generate` feeds one."""
    import torch
    from transformers import DynamicCache

    theirs = _transformers(folder)

    def once() -> float:
        with torch.inference_mode():
            cache = DynamicCache(config=theirs.config)
            theirs(torch.full((1, prompt), word), past_key_values=cache, use_cache=True)
            tokens = torch.full((1, rows), word)
            theirs(tokens, past_key_values=cache, use_cache=True).logits.argmax(-1)  # warm-up of this width
            began = time.perf_counter()
            for _ in range(steps):
                theirs(tokens, past_key_values=cache, use_cache=True).logits.argmax(-1)
            return 1e3 * (time.perf_counter() - began) / steps

    return once


def transformers_prefill(folder: Path, word: int, length: int) -> Runner:
    """Read a prompt, with the logits of its last token."""
    import torch
    from transformers import DynamicCache

    theirs = _transformers(folder)

    def once() -> float:
        with torch.inference_mode():
            cache = DynamicCache(config=theirs.config)
            began = time.perf_counter()
            tokens = torch.full((1, length), word)
            theirs(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1)
            return 1e3 * (time.perf_counter() - began)

    once()
    return once


@functools.lru_cache(maxsize=1)
def _transformers(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(os.cpu_count() or 1)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def llama_cpp_runner(path: Path, word: int, rows: int, slots: int, prompt: int, steps: int) -> Runner:
    """Feed `rows` tokens of one sequence per step to a GGUF file's model, and compute the logits of all of them."""
    context, feed = _llama_cpp(path, word, slots)

    def once() -> float:
        context.kv_cache_clear()
        feed(0, prompt)
        feed(prompt, rows)
        began = time.perf_counter()
        for step in range(1, steps + 1):
            feed(prompt + rows * step, rows)
        return 1e3 * (time.perf_counter() - began) / steps

    return once


def llama_cpp_prefill(path: Path, word: int, length: int, slots: int) -> Runner:
    """Read a prompt in one batch, with the logits of its last token."""
    context, feed = _llama_cpp(path, word, slots)

    def once() -> float:
        context.kv_cache_clear()
        began = time.perf_counter()
        feed(0, length, only_last=True)
        return 1e3 * (time.perf_counter() - began)

    once()
    return once


def _llama_cpp(path: Path, word: int, slots: int) -> tuple[Any, Callable[..., None]]:
    """A context of llama.cpp, and what feeds it a number of words from a position on."""
    from cyllama.llama import llama_cpp

    llama_cpp.disable_logging()
    options = llama_cpp.LlamaModelParams()
    options.use_mmap = False
    theirs = llama_cpp.LlamaModel(str(path), options)
    settings = llama_cpp.LlamaContextParams()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = slots
    settings.n_threads = settings.n_threads_batch = os.cpu_count() or 1
    context = llama_cpp.LlamaContext(theirs, settings)

    def feed(start: int, count: int, only_last: bool = False) -> None:
        batch = llama_cpp.LlamaBatch(n_tokens=count, embd=0, n_seq_max=1)
        for index in range(count):
            batch.add(word, start + index, [0], not only_last or index == count - 1)
        context.decode(batch)
        context.synchronize()

    return context, feed


def llama_cpp_server(path: str, lanes: int, slots: int, port: int) -> None:
    """Serve a GGUF file by llama.cpp's own server, until the process is ended."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = path, port
    params.n_parallel, params.n_ctx = lanes, lanes * slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count() or 1
    params.verbosity = 0
    server = xllamacpp.Server(params)
    threading.Event().wait()
    del server


def exported(model: Model) -> Path:
    """The model in Hugging Face's layout, written once."""
    folder = packages.cache_dir() / "peers" / model.name
    if not (folder / "model.safetensors").is_file():
        huggingface.write_model(folder, host(model), model.config)
    return folder


def host(model: Model) -> dict:
    """The parameters as NumPy arrays, layers as a tuple."""
    return jax.tree.map(np.asarray, unstack(model.params))


def float32_gguf(model: Model) -> Path:
    """The packaged GGUF file with every tensor dequantised to float32, written once."""
    target = packages.cache_dir() / "peers" / f"{model.name}-f32.gguf"
    if target.is_file():
        return target
    source = packages.path(model.name)
    ours, theirs = GGUF.open(source), gguf.GGUFReader(source)
    with replacing(target) as part:
        writer = gguf.GGUFWriter(part, ours.metadata["general.architecture"])
        for name, field in theirs.fields.items():
            if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
                continue
            kinds = field.types
            writer.add_key_value(name, field.contents(), kinds[0], sub_type=kinds[-1] if len(kinds) > 1 else None)
        for name in ours.tensors:
            writer.add_tensor(name, ours.read(name))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return target
