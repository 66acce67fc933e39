"""The same work by other runtimes on the same weights: steps of transformers on torch and llama.cpp; its server."""

import dataclasses
import importlib.util
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
from pasta_jax.models.kernels.cpu.library import cores
from pasta_jax.progress import say, track
from pasta_jax.weights import huggingface
from pasta_jax.weights.load import PACKAGED, read_model
from pasta_jax.weights.model import BLOCKS, Model
from pasta_jax.weights.settings import ModelSource


def require(source: ModelSource, packages: Sequence[str], section: str = "config.model") -> None:
    """Refuse --peers if the peers are not installed, or would run elsewhere, or for a model that they cannot read."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise PastaError(f"--peers needs {package}: bash launch/setup.sh --dev")
    if jax.default_backend() != "cpu":
        raise PastaError("--peers: the peers run on the CPU; set JAX_PLATFORMS=cpu")
    if source.preset not in PACKAGED or source.path or source.adapter:
        unset = f"{section}.path and .adapter" if source.adapter else f"{section}.path"
        raise PastaError(
            f"--peers: the peers read packaged weights only ({', '.join(PACKAGED)}); "
            f"name one as {section}.preset and leave {unset} empty"
        )


@dataclasses.dataclass(frozen=True)
class Peer:
    """Another runtime that has read the weights."""

    reset: Callable[[], None]  # forgets what it was fed
    feed: Callable[[int, int, bool], None]  # a number of words from a position on; True: only the last one's logits


def open_peers(model: Model, slots: int) -> dict[str, Peer]:
    """The peers by name; each sequence has room for that many tokens."""
    theirs, word = files(model), model.tokenizer.encode(" word")[0]
    say(f"loading {' and '.join(theirs)}")
    peers = {"transformers": transformers(theirs["transformers"], word)} if "transformers" in theirs else {}
    return peers | {"llama_cpp": llama_cpp(theirs["llama_cpp"], word, slots)}


def step_runner(peer: Peer, rows: int, prompt: int, steps: int) -> Runner:
    """Feed `rows` tokens of one sequence per step after a prompt, and compute the logits of all of them."""

    def once() -> float:
        peer.reset()
        peer.feed(0, prompt, True)
        peer.feed(prompt, rows, False)  # warm-up of this width
        began = time.perf_counter()
        for step in range(1, steps + 1):
            peer.feed(prompt + rows * step, rows, False)
        return 1e3 * (time.perf_counter() - began) / steps

    return once


def prefill_runner(peer: Peer, length: int) -> Runner:
    """Read a prompt, with the logits of its last token."""

    def once() -> float:
        peer.reset()
        began = time.perf_counter()
        peer.feed(0, length, True)
        return 1e3 * (time.perf_counter() - began)

    once()
    return once


def files(model: Model) -> dict[str, Path]:
    """What each peer reads: the same weights in float32, or the blocks of their file, which one of them can read."""
    if model.precision == BLOCKS:
        return {"llama_cpp": packages.path(model.name)}
    if model.precision != "float32":
        raise PastaError(
            f"--peers: the peers hold float32, not {model.precision}; set config.model.dtype to float32 or {BLOCKS}"
        )
    return {"transformers": exported(model.name), "llama_cpp": float32_gguf(model.name)}


def transformers(folder: Path, word: int) -> Peer:
    """The model in Hugging Face's layout by transformers on torch, greedily, as `generate` feeds it."""
    import torch
    from transformers import DynamicCache

    theirs, caches = torch_model(folder), []

    def reset() -> None:
        caches[:] = [DynamicCache(config=theirs.config)]

    def feed(_: int, count: int, only_last: bool) -> None:
        with torch.inference_mode():
            options = {"past_key_values": caches[0], "use_cache": True, "logits_to_keep": int(only_last)}  # 0: all
            theirs(torch.full((1, count), word), **options).logits.argmax(-1)

    return Peer(reset, feed)


def torch_model(folder: Path) -> Any:
    """The model in Hugging Face's layout, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(cores())
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def llama_cpp(path: Path, word: int, slots: int) -> Peer:
    """A GGUF file by llama.cpp."""
    from cyllama.llama import llama_cpp

    context = _llama_cpp_context(path, slots)

    def feed(start: int, count: int, only_last: bool) -> None:
        batch = llama_cpp.LlamaBatch(n_tokens=count, embd=0, n_seq_max=1)
        for index in range(count):
            batch.add(word, start + index, [0], not only_last or index == count - 1)
        context.decode(batch)
        context.synchronize()

    return Peer(context.kv_cache_clear, feed)


def llama_cpp_logits(path: Path, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Next-token logits [T, V] of each text by llama.cpp, a token at a time, as it decodes."""
    from cyllama.llama import llama_cpp

    context = _llama_cpp_context(path, max(map(len, texts)))

    def after(token: int, position: int) -> np.ndarray:
        batch = llama_cpp.LlamaBatch(n_tokens=1, embd=0, n_seq_max=1)
        batch.add(token, position, [0], True)
        context.decode(batch)
        context.synchronize()
        return np.array(context.get_logits(), np.float32)

    found = []
    for ids in track(texts, "llama.cpp", len(texts)):
        context.kv_cache_clear()
        found.append(np.stack([after(int(token), position) for position, token in enumerate(ids)]))
    return found


def _llama_cpp_context(path: Path, slots: int) -> Any:
    from cyllama.llama import llama_cpp

    class Sized(llama_cpp.LlamaModel):
        n_vocab = property(lambda self: self.get_vocab().n_vocab)  # its context reads this, its model lacks it

    llama_cpp.disable_logging()
    options = llama_cpp.LlamaModelParams()
    options.use_mmap = False
    settings = llama_cpp.LlamaContextParams()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = slots
    settings.n_threads = settings.n_threads_batch = cores()
    return llama_cpp.LlamaContext(Sized(str(path), options), settings)


def llama_cpp_server(
    path: str, lanes: int, slots: int, port: int, speculation: str = "none", drafter: str = ""
) -> None:
    """Serve a GGUF file by llama.cpp's own server, until the process is ended.

    `speculation` is what it calls a type, with that type's own defaults; `drafter` is the file of its draft model.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = path, port
    params.n_parallel, params.n_ctx = lanes, lanes * slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = cores()
    kind = getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{speculation.upper()}")
    params.speculative.types, params.speculative.draft.mparams.path = [kind], drafter
    params.speculative.draft.cpuparams.n_threads = params.speculative.draft.cpuparams_batch.n_threads = cores()
    params.verbosity, params.cache_ram_mib = 0, 0  # no prompt of an earlier measurement comes back
    server = xllamacpp.Server(params)
    threading.Event().wait()
    del server


def exported(preset: str) -> Path:
    """A packaged model's float32 weights in Hugging Face's layout, written once."""
    folder = packages.cache_dir() / "peers" / preset
    if not (folder / "model.safetensors").is_file():
        model = read_model(preset, "")
        huggingface.write_model(folder, model.params, model.config)
    return folder


def draft_gguf(preset: str) -> Path:
    """The packaged GGUF file as llama.cpp quantises it once more, to draft for the file itself; written once."""
    from cyllama.llama import llama_cpp

    target = packages.cache_dir() / "peers" / f"{preset}-q4_0.gguf"
    if not target.is_file():
        llama_cpp.disable_logging()
        options = llama_cpp.LlamaModelQuantizeParams()
        options.ftype = 2  # Q4_0: on CPUs with AVX-512, Q2_K takes as long for a token, and is right less often
        options.allow_requantize, options.nthread = True, cores()
        with replacing(target) as part:
            llama_cpp.model_quantize(str(packages.path(preset)), str(part), options)
    return target


def float32_gguf(preset: str) -> Path:
    """The packaged GGUF file with every tensor dequantised to float32, written once."""
    target = packages.cache_dir() / "peers" / f"{preset}-f32.gguf"
    if target.is_file():
        return target
    source = packages.path(preset)
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
