"""Tokenised records on disk: a TFDS data set in array_record form, written and read without TensorFlow.

It holds each record twice: the linear answer with its structure under the policy `predicted`, and the ids of the plain
answer, the sequential baseline. The folder is written under another name and renamed when whole; its about.json says
what all of it was made from.
"""

import contextlib
import dataclasses
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pasta_jax import fingerprints
from pasta_jax.data import example as example_module
from pasta_jax.data import sources
from pasta_jax.data.example import VECTORS, Example, encode
from pasta_jax.data.records import Record, prompt_ids
from pasta_jax.errors import PastaError
from pasta_jax.lang import structure as structure_module
from pasta_jax.lang.program import Program
from pasta_jax.lang.structure import Positions
from pasta_jax.models import chat
from pasta_jax.models.tokenizer import tokenizer_fingerprint

VERSION = "1.0.0"  # of the form; greater when a reader of the one before would be wrong
NAME = "pasta_records"
ABOUT = "about.json"
SPLITS = ("train", "validation")
STORED = Positions("predicted")  # of the structure that is stored


def write(folder: Path, records: Sequence[Record], tokenizer) -> dict:
    """Write the data set of accepted records; gives back what about.json says."""
    if not records:
        raise PastaError(f"{folder}: there is no record to write; look into refused.jsonl")
    sources.refuse_for_training(record.source for record in records)
    if folder.exists() and not (folder / ABOUT).exists() and (folder.is_file() or any(folder.iterdir())):
        raise PastaError(f"{folder}: it holds something else; give a folder of its own")
    tfds = _tfds()
    by_split = {split: [r for r in records if r.split == split] for split in SPLITS}
    by_split = {split: chosen for split, chosen in by_split.items() if chosen}

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
            return {split: self._generate_examples(chosen) for split, chosen in by_split.items()}

        def _generate_examples(self, chosen):
            for number, record in enumerate(chosen):  # a pair may be there twice, where that was asked for
                yield f"{number}-{record.id}", _row(record, tokenizer)

    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        builder = PastaRecords(data_dir=part, file_format="array_record")
        with contextlib.redirect_stdout(io.StringIO()):  # it tells how it goes
            builder.download_and_prepare()
        shutil.rmtree(part / "downloads", ignore_errors=True)
        about = about_of(records, tokenizer) | {"path": str(Path(builder.data_path).relative_to(part))}
        (part / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    except OSError as error:
        raise PastaError(f"{folder}: {error.strerror}; give a folder that you may write") from None
    return about


def is_current(folder: Path, records: Sequence[Record], tokenizer) -> bool:
    """Whether the folder holds just what `write` would write."""
    try:
        return _about(folder)["fingerprint"] == about_of(records, tokenizer)["fingerprint"]
    except PastaError:
        return False


def about_of(records: Sequence[Record], tokenizer) -> dict:
    """What a data set is made from, and one fingerprint of it all."""
    parts = {
        "records": fingerprints.of_texts(record.json() for record in records),
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


class Examples(Sequence):
    """The examples of one split, read from disk as they are asked for; of a data set, or of a run's folder with one."""

    def __init__(self, folder: Path, split: str, tokenizer, strip_tags: bool, positions: Positions):
        folder = folder / "dataset" if (folder / "dataset" / ABOUT).is_file() else folder
        self.about = _about(folder)
        sources.refuse_for_training(self.about["sources"])
        if self.about["tokenizer"] != tokenizer_fingerprint(tokenizer):
            raise PastaError(
                f"{folder}: made with another tokenizer than {tokenizer.name}'s; write it again with this one"
            )
        if not self.about["counts"].get(split):
            there = ", ".join(split for split, count in self.about["counts"].items() if count)
            raise PastaError(f"{folder}: it has no split {split!r}; choose one of {there}")
        self._rows = _tfds().builder_from_directory(folder / self.about["path"]).as_data_source(split)
        self._tokenizer, self._strip, self._positions = tokenizer, strip_tags, positions
        self.lengths = [self._length(self._rows[n]) for n in range(len(self._rows))]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Example:
        if number >= len(self):  # what ends a loop over a sequence
            raise IndexError(number)
        row = self._rows[number]
        prompt = int(row["prompt_length"])
        if self._strip:
            response = row["plain"]
        elif self._positions.policy == STORED.policy:
            return Example(*(np.asarray(row[name], np.int32) for name in VECTORS))
        else:
            response = row["token"][prompt:]
        tokenizer = self._tokenizer
        tokens = row["token"][:prompt], response
        return encode(*tokens, tokenizer.tags, tokenizer.end_of_turn, self._positions)

    def _length(self, row: dict) -> int:
        return int(row["prompt_length"]) + len(row["plain"]) if self._strip else len(row["token"])


def _row(record: Record, tokenizer) -> dict:
    prompt = prompt_ids(record, tokenizer)
    ids = Program.parse(record.program).ids(tokenizer)
    made = encode(prompt, ids, tokenizer.tags, tokenizer.end_of_turn, STORED)
    plain = np.asarray(tokenizer.encode(record.response), np.int32)
    return {"id": record.id, "prompt_length": np.int32(len(prompt)), "plain": plain} | {
        field.name: getattr(made, field.name) for field in dataclasses.fields(made)
    }


def _about(folder: Path) -> dict:
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except OSError as error:
        raise PastaError(f"{folder}: {error.strerror} ({ABOUT}); give a folder that launch.annotate wrote") from None
    except ValueError:
        raise PastaError(f"{folder / ABOUT}: no JSON; write the data set again") from None
    if about.get("version") != VERSION:
        raise PastaError(f"{folder}: of version {about.get('version')}, this code reads {VERSION}; write it again")
    return about


def _tfds():
    """TFDS, quiet: it is slow to import and likes to talk."""
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    return tfds
