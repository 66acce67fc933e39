"""Paths at gs://, on a stand-in: whole files, growing files, folders that are fetched, and a run that resumes there."""

import contextlib
import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from fsspec.registry import _registry
from fsspec.spec import AbstractBufferedFile

import configs.sft
from pasta_jax.data.builder import Examples, is_current, write
from pasta_jax.errors import PastaError
from pasta_jax.files import atomic, jsonl, remote
from pasta_jax.files.remote import path_of
from pasta_jax.files.workdir import claim
from pasta_jax.lang.structure import Positions
from pasta_jax.runs.metrics import read_lines
from pasta_jax.runs.settings import changed
from pasta_jax.train import sft
from tests.data.test_builder import RECORDS, TOKENIZER
from tests.helpers import bucket

MODEL = "model.safetensors"


@pytest.fixture
def root(monkeypatch, tmp_path) -> Path:
    """The folder behind gs://."""
    folder = tmp_path / "buckets"
    folder.mkdir()
    bucket.install(monkeypatch, folder)
    remote.local.cache_clear()
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_paths_are_local_or_at_gs_for_which_the_setup_command_is_named(monkeypatch):
    assert path_of("runs/toy") == remote.local(Path("runs/toy")) == Path("runs/toy")
    assert not remote.is_remote(path_of("/a"))
    with pytest.raises(PastaError, match=r"^s3://bucket/run: only local paths and those at gs:// can be used"):
        path_of("s3://bucket/run")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(_registry, "gcs", raising=False)
    with pytest.raises(PastaError, match=r"^gs://bucket/run: gs:// needs packages .*; bash launch/setup.sh --gcs$"):
        path_of("gs://bucket/run")


def test_a_tilde_is_the_home_folder_since_shells_expand_none_after_an_equals_sign(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert path_of("~/runs/toy") == Path("/home/me/runs/toy")
    assert path_of("runs/~") == Path("runs/~")
    assert path_of("~nobody-here/x") == Path("~nobody-here/x")


def test_files_are_written_whole(root):
    folder = path_of("gs://bucket/run")
    assert remote.is_remote(folder)
    assert str(remote.absolute(folder) / "a.txt") == "gs://bucket/run/a.txt"
    atomic.write_whole(folder / "new/a.txt", "数\n")
    atomic.write_json(folder / "a.json", {"b": 1})
    assert names(root) == ["bucket/run/a.json", "bucket/run/new/a.txt"]
    assert (root / "bucket/run/new/a.txt").read_text() == "数\n"

    def stopped() -> None:
        with atomic.replacing(folder / "a.json") as part:
            part.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    assert json.loads((root / "bucket/run/a.json").read_text()) == {"b": 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_upload_that_is_interrupted_leaves_no_file(monkeypatch, tmp_path, error):
    uploaded = []

    class Written(AbstractBufferedFile):
        def _upload_chunk(self, final=False):
            uploaded.append(final)

    target = Mock(open=lambda mode: Written(Mock(), "gs://bucket/a", mode))
    monkeypatch.setattr(remote.shutil, "copyfileobj", Mock(side_effect=error))
    (tmp_path / "a").write_text("whole")
    with pytest.raises(PastaError if error is OSError else error):
        remote.upload(tmp_path / "a", target, "rerun")
    assert uploaded == []
    monkeypatch.undo()
    remote.upload(tmp_path / "a", target, "rerun")
    assert uploaded == [True]


def test_an_upload_needs_no_more_of_a_file_than_tensorflows_has(tmp_path):
    """Where TensorFlow is installed, etils opens gs:// by it, in a context manager."""
    (tmp_path / "a").write_text("whole")
    with (tmp_path / "b").open("wb") as copy:
        remote.upload(tmp_path / "a", Mock(open=lambda mode: contextlib.nullcontext(Mock(write=copy.write))), "rerun")
    assert (tmp_path / "b").read_text() == "whole"


def test_a_folder_is_uploaded_with_its_own_files_last_and_fetched_once(root, monkeypatch):
    folder, order = path_of("gs://bucket/data"), []
    upload = remote.upload
    monkeypatch.setattr(
        remote, "upload", lambda file, target, fix: (order.append(file.name), upload(file, target, fix))
    )
    atomic.write_whole(folder / "old.txt", "old")
    order.clear()
    with atomic.replacing_folder(folder) as part:
        (part / "sub/deeper").mkdir(parents=True)
        for name in ("about.json", "sub/rows", "sub/deeper/rows2"):
            (part / name).write_text(name)
    assert order == ["rows2", "rows", "about.json"]
    assert names(root / "bucket/data") == ["about.json", "sub/deeper/rows2", "sub/rows"]
    copy = remote.local(folder)
    assert names(copy) == ["about.json", "sub/deeper/rows2", "sub/rows"]
    assert remote.local(folder) == copy
    remote.forget()
    assert not copy.parent.exists()
    assert names(remote.local(folder)) == names(root / "bucket/data")
    with pytest.raises(PastaError, match=r"^gs://bucket/none: cannot be read \(.*\); check the address"):
        remote.local(path_of("gs://bucket/none"))


def test_lines_of_json_are_uploaded_at_intervals_and_at_the_end(root, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(remote.time, "monotonic", lambda: now[0])
    path, behind = path_of("gs://bucket/answers.jsonl"), root / "bucket/answers.jsonl"
    atomic.write_whole(path, '{"a": 1}\n{"cut')
    with jsonl.JsonLines(path) as lines:
        assert lines.lines == [b'{"a": 1}']
        lines.append({"b": 2})
        assert behind.read_text() == '{"a": 1}\n'
        now[0] += jsonl.UPLOAD_S
        lines.append({"c": 3})
        assert behind.read_text() == '{"a": 1}\n{"b": 2}\n{"c": 3}\n'
        lines.append({"d": 4})
    assert [*map(json.loads, behind.read_text().splitlines())] == [{"a": 1}, {"b": 2}, {"c": 3}, {"d": 4}]


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(root, monkeypatch):
    with claim(path_of("gs://bucket/run")):
        assert names(root) == []
    (root / "closed").write_text("")
    with (
        pytest.raises(PastaError, match=r"^gs://closed/run/\.writable.*: cannot be written \(.*\); "),
        claim(path_of("gs://closed/run")),
    ):
        pytest.fail("claimed")


def test_a_dataset_is_written_and_read(root):
    folder = path_of("gs://bucket/data")
    write(folder, RECORDS, TOKENIZER)
    assert is_current(folder, RECORDS, TOKENIZER)
    train = [record for record in RECORDS if record.split == "train"]
    assert len(Examples(folder, "train", TOKENIZER, False, Positions("predicted"))) == len(train)
    with pytest.raises(PastaError, match=r"^gs://bucket/none: cannot be read .*; check the address"):
        Examples(path_of("gs://bucket/none"), "train", TOKENIZER, False, Positions("predicted"))


@pytest.mark.slow
def test_a_run_at_gs_is_stopped_and_resumes_as_if_it_had_never_stopped(root, tmp_path):
    """Checkpoints, metrics and the model are equal to those of an uninterrupted run on a local disk."""
    chosen = changed(
        configs.sft.tiny(),
        data={"rows": 8},  # one for each of the eight devices
        every={"probe": 0, "save": 4},
        keep={"newest": 1},
        train={"steps": 8},
    )
    whole = sft.run(chosen, tmp_path / "whole")

    workdir, steps = path_of("gs://bucket/run"), iter(range(5))
    stopped = sft.run(chosen, workdir, stopping=lambda: next(steps, None) is None)
    assert (stopped.step, stopped.model) == (5, None)
    assert (root / "bucket/run/checkpoints/5/commit_success.txt").is_file()
    assert [line["step"] for line in read_lines(root / "bucket/run/metrics.jsonl")] == [1, 2, 3, 4, 5]
    resumed = sft.run(chosen, workdir)
    assert str(resumed.model) == "gs://bucket/run/model"
    assert resumed.step == whole.step
    times = {"s_per_step", "tokens_per_s"}
    written = [
        [{name: line[name] for name in line.keys() - times} for line in read_lines(folder / "metrics.jsonl")]
        for folder in (root / "bucket/run", tmp_path / "whole")
    ]
    assert written[0] == written[1]
    model = names(root / "bucket/run/model")
    assert model == names(tmp_path / "whole/model")
    assert (root / "bucket/run/model" / MODEL).read_bytes() == (tmp_path / "whole/model" / MODEL).read_bytes()
    assert sorted(path.name for path in (root / "bucket/run/checkpoints").iterdir()) == ["8"]
    (root / "bucket/run/checkpoints/8/sizes").write_text('{"state/none": 1}')
    with pytest.raises(PastaError, match=r"gs://bucket/run/checkpoints/8: not a complete checkpoint"):
        sft.run(chosen, workdir)
