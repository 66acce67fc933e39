"""Tokenised records on disk: a TFDS dataset in array_record format, written and read without TensorFlow.

It stores each record twice: the linear answer with its structure under the policy `predicted`, and the ids of the plain
answer, the sequential baseline. Its about.json states what it was made from.
"""

import contextlib
import dataclasses
import io
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pasta_jax.data import example as example_module
from pasta_jax.data import sources
from pasta_jax.data.example import VECTORS, Example, encode
from pasta_jax.data.records import Record, prompt_ids
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints, remote
from pasta_jax.files.atomic import replacing_folder, write_json
from pasta_jax.files.jsonl import as_line
from pasta_jax.files.validated import MIB, Count, read_json, typed
from pasta_jax.lang import structure as structure_module
from pasta_jax.lang.program import Program
from pasta_jax.lang.structure import Positions
from pasta_jax.lang.tree import to_tree
from pasta_jax.progress import Progress
from pasta_jax.tokenizers import chat
from pasta_jax.tokenizers.tokenizer import Tokenizer, tokenizer_fingerprint

VERSION = "1.0.0"  # of the format; raise it when readers of the previous one would be wrong
NAME = "pasta_records"
ABOUT = "about.json"
SPLITS = ("train", "validation")
Row = dict[str, Any]  # field of a stored record to its array, number or text
STORED = Positions("predicted")  # of the stored structure


def write(folder: Path, records: Sequence[Record], tokenizer: Tokenizer) -> dict[str, Any]:
    """Write the dataset of accepted records, whole or not at all; returns the content of about.json."""
    if not records:
        raise PastaError(f"{folder}: there is no record to write; see refused.jsonl")
    sources.refuse_for_training(record.source for record in records)
    if folder.exists() and not (folder / ABOUT).exists() and (folder.is_file() or any(folder.iterdir())):
        raise PastaError(f"{folder}: not a dataset; choose an empty or new folder")
    tfds = _import_tfds()
    by_split = {split: [r for r in records if r.split == split] for split in SPLITS}
    by_split = {split: part for split, part in by_split.items() if part}
    progress = Progress("tokenising", len(records))

    class PastaRecords(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        name = NAME
        VERSION = tfds.core.Version(VERSION)
        code_path = None  # TFDS would look for a package around this class, with a module that is not installed

        def _info(self):
            row = tfds.features.Tensor(shape=(None,), dtype=np.int32)
            features = {"id": tfds.features.Text(), "prompt_length": np.int32, "plain": row}
            features |= dict.fromkeys(VECTORS, row)
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, _):
            return {split: self._generate_examples(part) for split, part in by_split.items()}

        def _generate_examples(self, part: Sequence[Record]) -> Iterator[tuple[str, Row]]:
            for number, record in enumerate(part):  # the number: without drop_duplicates, ids repeat
                yield f"{number}-{record.id}", _row(record, tokenizer)
                progress.add()

    with replacing_folder(folder) as part, progress:
        builder = PastaRecords(data_dir=part, file_format="array_record")
        with contextlib.redirect_stdout(io.StringIO()):  # TFDS reports to stdout
            builder.download_and_prepare()
        shutil.rmtree(part / "downloads", ignore_errors=True)
        about = about_of(records, tokenizer) | {"path": str(Path(builder.data_path).relative_to(part))}
        write_json(part / ABOUT, about)
    return about


def is_current(folder: Path, records: Sequence[Record], tokenizer: Tokenizer) -> bool:
    """Whether the folder holds exactly what `write` would write."""
    try:
        return _about(folder).fingerprint == about_of(records, tokenizer)["fingerprint"]
    except PastaError:
        return False


def about_of(records: Sequence[Record], tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything that a dataset is made from, and one fingerprint over it."""
    parts = {
        "records": fingerprints.of_texts(map(as_line, records)),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "code": fingerprints.of_code(structure_module, example_module, chat),
        "version": VERSION,
    }
    return {
        "fingerprint": fingerprints.of_texts(parts.values()),
        **parts,
        "sources": sorted({record.source for record in records}),
        "annotators": sorted({record.annotator for record in records}),
        "counts": {split: sum(record.split == split for record in records) for split in SPLITS},
    }


@dataclasses.dataclass(frozen=True)
class About:
    """What about.json says that readers need."""

    fingerprint: str
    tokenizer: str
    sources: tuple[str, ...]
    counts: dict[str, Count]
    path: str  # of TFDS's files, below the folder


class Examples(Sequence[Example]):
    """The examples of one split of a dataset, read from disk on access."""

    def __init__(
        self,
        folder: Path,
        split: str,
        tokenizer: Tokenizer,
        strip_tags: bool,
        positions: Positions,
        tree: bool = False,
    ):
        """`folder`: a dataset, or the folder of an annotation run that wrote one. `tree`: answers as APAR's trees."""
        folder = remote.local(folder / "dataset" if (folder / "dataset" / ABOUT).is_file() else folder)
        self.about = _about(folder)
        sources.refuse_for_training(self.about.sources)
        if self.about.tokenizer != tokenizer_fingerprint(tokenizer):
            raise PastaError(
                f"{folder}: written with another tokenizer than {tokenizer.name}; write it again by launch.annotate "
                "with this model as --config.model.preset or --config.model.path"
            )
        if not self.about.counts.get(split):
            splits = ", ".join(split for split, count in self.about.counts.items() if count)
            fix = "set --config.data.held_out=0 to do without"
            if split == "train":  # of a few records, all may be held out
                fix = "annotate more answers, or the source again with --config.validation_percent=0"
            raise PastaError(f"{folder}: no split {split!r}, only {splits}; {fix}")
        self._tokenizer, self._strip, self._positions, self._tree = tokenizer, strip_tags, positions, tree
        tfds = _import_tfds()
        try:
            self._rows = tfds.builder_from_directory(folder / self.about.path).as_data_source(split)
            rows = (self._rows[number] for number in range(len(self._rows)))
            self.lengths = [self._length(row) for row in rows]
        except PastaError as error:
            raise PastaError(f"{folder}: {error}; write the dataset again") from None
        except Exception as error:  # TFDS and array_record raise many kinds on damaged files
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
            raise PastaError(f"{folder}: not a whole dataset ({reason}); write it again") from None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Example:
        if number >= len(self):  # ends a loop over the sequence
            raise IndexError(number)
        row = self._rows[number]
        prompt = int(row["prompt_length"])
        if self._strip:
            response = row["plain"]
        elif self._tree:
            response = to_tree(row["token"][prompt:], self._tokenizer.tags)
        elif self._positions.policy == STORED.policy:
            return Example(*(np.asarray(row[name], np.int32) for name in VECTORS))
        else:
            response = row["token"][prompt:]
        tokenizer = self._tokenizer
        tokens = row["token"][:prompt], response
        return encode(*tokens, tokenizer.tags, tokenizer.end_of_turn, self._positions)

    def _length(self, row: Row) -> int:
        """Tokens of a record, after a check that its parts fit together."""
        prompt, length = int(row["prompt_length"]), len(row["token"])
        if not 0 <= prompt <= length or any(len(row[name]) != length for name in VECTORS):
            raise PastaError(f"record {row['id']!r}: its vectors have different lengths")
        parts = np.asarray(row["token"]), np.asarray(row["plain"])
        if any(ids.size and not 0 <= ids.min() <= ids.max() < self._tokenizer.model_vocab for ids in parts):
            raise PastaError(f"record {row['id']!r}: has ids that {self._tokenizer.name} lacks")
        if self._tree and not self._strip:
            return prompt + len(to_tree(row["token"][prompt:], self._tokenizer.tags))
        return prompt + len(row["plain"]) if self._strip else length


def _row(record: Record, tokenizer: Tokenizer) -> Row:
    """The stored form of a record."""
    prompt = prompt_ids(record, tokenizer)
    ids = Program.parse(record.program).ids(tokenizer)
    example = encode(prompt, ids, tokenizer.tags, tokenizer.end_of_turn, STORED)
    plain = np.asarray(tokenizer.encode(record.response), np.int32)
    return {"id": record.id, "prompt_length": np.int32(len(prompt)), "plain": plain} | {
        field.name: getattr(example, field.name) for field in dataclasses.fields(example)
    }


def _about(folder: Path) -> About:
    """The content of about.json."""
    path, fix = folder / ABOUT, "write the dataset again"
    if not path.is_file():
        raise PastaError(f"{folder}: has no {ABOUT}; choose a folder that launch.annotate wrote")
    raw = read_json(path, dict[str, Any], most=16 * MIB, fix=fix)
    if raw.get("version") != VERSION:
        version = str(raw.get("version"))[:40]
        raise PastaError(f"{folder}: has version {version}, this version of pasta_jax reads {VERSION}; write it again")
    about = typed(raw, About, str(path), fix)
    if Path(about.path).is_absolute() or ".." in Path(about.path).parts or not about.path.isprintable():
        raise PastaError(f"{path}: path: {about.path!r} is not a folder below {folder}; {fix}")
    return about


def _import_tfds() -> ModuleType:
    """TFDS without its progress bars; imported on use because that takes seconds."""
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    return tfds
