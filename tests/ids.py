"""`python -m tests.ids [COUNT]`: how many of COUNT awkward texts have other ids in llama.cpp or `tokenizers`.

Of Qwen's packaged file, if it is installed, and of a tiny tokenizer of each kind.
"""

import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.tokenizers.tokenizer import load_tokenizer
from tests.helpers.texts import MARKS, mixed
from tests.helpers.tiny_tokenizers import TINY

COUNT = 3000
# Qwen's normalizer composes characters: left out, as llama.cpp does. In text, that finds the others' marks, or takes
# combining marks for other signs.
LEFT_OUT = ("qwen2.json", "gemma.gguf", "gpt-4o.gguf", "tekken.gguf")
NAMES = [name for name in TINY if name.endswith((".json", ".gguf")) and name not in LEFT_OUT]


PARSED = ("</s>", "<tool>", "<think>", "▁", *MARKS[:18])  # what other programs find in text
SPANS = ((32, 126), (0, 0x2FF), (0x300, 0xD7FF), (0xE000, 0x1FFFF))


def awkward(count: int, seed: int = 1) -> list[str]:
    """Mixtures of samples, and characters of all scripts by chance."""
    rng, texts = random.Random(seed), []
    mixtures = iter(mixed(4 * count, seed))
    while len(texts) < count:
        text = next(mixtures)
        if len(texts) % 2:
            spans = [rng.choice(SPANS) for _ in range(rng.randint(1, 4))]
            text = "".join(chr(rng.randint(*span)) for span in spans for _ in range(rng.randint(1, 12)))
        if not any(one in text for one in PARSED):
            texts.append(text)
    return texts


def differing(path: Path, texts: Sequence[str]) -> list[str]:
    """The texts whose ids differ."""
    ours = load_tokenizer(path)

    def begun(text: str) -> list[int] | None:
        try:
            return ours.encode(ours.vocabulary.opened(text, True))
        except PastaError:  # SmolLM2's pieces lack some bytes
            return None

    if path.suffix == ".json":
        from tokenizers import Tokenizer

        direct = Tokenizer.from_file(str(path))

        def theirs(text: str) -> list[int]:
            return direct.encode(text, add_special_tokens=False).ids

    else:
        from cyllama.llama import llama_cpp

        llama_cpp.disable_logging()
        model = llama_cpp.LlamaModel(str(path), llama_cpp.LlamaModelParams())
        vocab = model.get_vocab()

        def theirs(text: str) -> list[int]:
            return vocab.tokenize(text, False, False)

    return [text for text in texts if (ids := begun(text)) is not None and ids != theirs(text)]


def main() -> None:
    """Print a line for each file; exit with 1 if a text differs."""
    texts, failed = awkward(int(sys.argv[1]) if len(sys.argv) > 1 else COUNT), False
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / name for name in NAMES}
        for name, path in paths.items():
            path.write_bytes(TINY[name]())
        try:
            paths["Qwen2.5-Coder"] = packages.path("qwen2_5_coder_1_5b")
        except PastaError as error:
            print(error)
        for name, path in paths.items():
            found = differing(path, texts)
            failed |= bool(found)
            print(f"{name:16} {len(found):4} of {len(texts)} differ", *map(ascii, found[:2]), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
