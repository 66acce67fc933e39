"""Files and folders are whole or absent, whenever a write stops; what a killed writer left does no harm."""

import errno
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files import atomic

FIX = "choose a writable path on a disk with free space"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def full(*_):
    raise OSError(28, os.strerror(28))


def test_written_files_are_read_back(tmp_path):
    atomic.write_whole(tmp_path / "new" / "folder" / "a.txt", "数\n")
    assert (tmp_path / "new/folder/a.txt").read_bytes() == "数\n".encode()
    atomic.write_whole(tmp_path / "a.bin", b"\0\r\n")
    assert (tmp_path / "a.bin").read_bytes() == b"\0\r\n"
    atomic.write_json(tmp_path / "a.json", {"b": ["数", 1.5, None]})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n "b": [\n  "数",\n  1.5,\n  null\n ]\n}\n'
    atomic.write_lines(tmp_path / "a.jsonl", iter(["1", "2\u2028"]))
    assert (tmp_path / "a.jsonl").read_bytes() == "1\n2\u2028\n".encode()
    assert names(tmp_path) == ["a.bin", "a.json", "a.jsonl", "new"]
    (tmp_path / "plain").touch()
    assert (tmp_path / "a.bin").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("old", [None, "old\n"])
def test_a_reader_sees_the_old_file_or_the_whole_new_one(tmp_path, old):
    path, before = tmp_path / "lines", ["lines"] if old else []
    if old:
        path.write_text(old)

    def lines():
        yield "first"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic.write_lines(path, lines())
    assert names(tmp_path) == before
    with atomic.replacing(path) as part:
        part.write_text("new\n")
        assert part.parent == path.parent  # or a rename could become a copy
        assert not old or path.read_text() == old
    assert (path.read_text(), names(tmp_path)) == ("new\n", ["lines"])


def test_two_writers_with_equal_process_ids_never_share_a_temporary_file(tmp_path):
    """As in two containers with one cache."""
    path = tmp_path / "a"
    with atomic.replacing(path) as first, atomic.replacing(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert (path.read_text(), names(tmp_path)) == ("first", ["a"])


def test_content_is_on_the_disk_before_its_name(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(atomic, "_sync", lambda path: order.append(path.suffix or path.name))
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("rename"), replace(*paths)))
    atomic.write_whole(tmp_path / "a.txt", "a")
    assert order == [".part", "rename", tmp_path.name]


@pytest.mark.parametrize(("function", "code"), [("fsync", "EINVAL"), ("fsync", "ENOTSUP"), ("open", "EACCES")])
def test_folders_that_cannot_be_synced_are_written_to(tmp_path, monkeypatch, function, code):
    """Some network and FUSE file systems flush files only."""
    real, refused = getattr(os, function), [os.path.isdir]

    def fails(what, *rest, **options):
        if refused[-1](what):
            raise OSError(getattr(errno, code), code)
        return real(what, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fails)
        atomic.write_json(tmp_path / "a.json", 1)
        with atomic.replacing_folder(tmp_path / "set") as part:
            (part / "b").touch()
        refused.append(os.path.exists)
        with pytest.raises(PastaError, match=f"a.json: {code}"):  # for a file it stays an error
            atomic.write_json(tmp_path / "a.json", 2)
    assert ((tmp_path / "a.json").read_text(), names(tmp_path / "set")) == ("1\n", ["b"])
    assert names(tmp_path) == ["a.json", "set"]


def test_what_a_killed_writer_left_is_removed_a_day_later(tmp_path):
    hour, kept = time.time() - 3600, [".a.01ab.part", ".mine.part", ".hidden"]
    old = [".a.0123456789abcdef.part", ".set.fedcba9876543210.part"]
    (tmp_path / old[1]).mkdir()
    for name in (*kept, old[0]):
        (tmp_path / name).touch()
    for name, when in [(kept[0], hour), *((name, hour - 24 * 3600) for name in (*kept[1:], *old))]:
        os.utime(tmp_path / name, (when, when))
    atomic.write_whole(tmp_path / "a", "new")
    assert names(tmp_path) == sorted([*kept, "a"])


def test_a_path_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    for path, reason in (
        (tmp_path / "file" / "a.json", "File exists"),
        (tmp_path / "folder", "Is a directory"),
        (tmp_path / ("a" * 300), "File name too long"),
    ):
        with pytest.raises(PastaError) as error:
            atomic.write_json(path, 1)
        assert str(error.value) == f"{path}: {reason}; {FIX}"
    monkeypatch.setattr(atomic.Path, "write_bytes", full)
    with pytest.raises(PastaError, match=f"file: No space left on device; {FIX}"):
        atomic.write_whole(tmp_path / "file", "new")
    assert (names(tmp_path), (tmp_path / "file").read_text()) == (["file", "folder"], "old")


def test_a_pipe_or_a_device_is_written_to_and_not_replaced(tmp_path):
    """As root, --trace=/dev/null would make a file of it."""
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    atomic.write_whole(pipe, "text")
    reader.join(10)
    assert (read, pipe.is_fifo(), names(tmp_path)) == (["text"], True, ["pipe"])


@pytest.mark.parametrize(("mode", "folder"), [("w", "/dev/fd"), ("a", "/dev/fd"), ("a", "/proc/thread-self/fd")])
def test_an_open_file_is_written_to_and_not_replaced(tmp_path, mode, folder):
    """--output=/dev/stdout is often redirected to a file. The last folder could as well be another process's."""
    (tmp_path / "out").write_text("earlier\n")
    with (tmp_path / "out").open(mode) as file:
        (tmp_path / "link").symlink_to(f"{folder}/{file.fileno()}")
        for path in (Path(folder, str(file.fileno())), tmp_path / "link"):
            print("before", file=file, flush=True)
            atomic.check_file(path, "--output")
            atomic.write_whole(path, "text\n")
        print("after", file=file, flush=True)
    assert (tmp_path / "out").read_text() == "earlier\n" * (mode == "a") + "before\ntext\n" * 2 + "after\n"
    assert names(tmp_path) == ["link", "out"]


def test_a_device_is_written_to_in_a_folder_where_no_file_can_be(monkeypatch):
    monkeypatch.setattr(atomic, "check_writable", full)
    atomic.check_file(Path("/dev/null"), "--output")
    with pytest.raises(PastaError, match="--output: is a folder"):
        atomic.check_file(Path("/dev"), "--output")


def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "disk").mkdir()
    for name, write, read in (
        ("a", atomic.write_whole, Path.read_text),
        ("set", fill, lambda folder: names(folder)[0]),
    ):
        link, target = tmp_path / name, tmp_path / "disk" / f"the {name}"
        link.symlink_to(Path("disk", target.name))
        for content in ("first", "second"):  # the first finds no target
            write(link, content)
            assert (link.is_symlink(), read(target)) == (True, content)
    assert (names(tmp_path), names(tmp_path / "disk")) == (["a", "disk", "set"], ["the a", "the set"])


def test_a_file_is_checked_where_its_link_leads(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "missing" / "a")
    with pytest.raises(PastaError, match=r"^--output: .*missing: no such folder"):
        atomic.check_file(tmp_path / "a", "--output")
    (tmp_path / "missing").mkdir()
    atomic.check_file(tmp_path / "a", "--output")


def fill(folder: Path, name: str) -> None:
    with atomic.replacing_folder(folder) as part:
        (part / name).touch()


def test_a_folder_is_checked_by_writing(tmp_path):
    atomic.check_writable(tmp_path / "new/folder")
    assert names(tmp_path / "new/folder") == []
    (tmp_path / "file").touch()
    for folder in ("file", "file/below"):
        with pytest.raises(OSError, match=r"File exists|Not a directory"):
            atomic.check_writable(tmp_path / folder)


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = tmp_path / "set"
    for content in ("old", "new"):
        with atomic.replacing_folder(folder) as part:
            (part / content).touch()
        assert (names(folder), names(tmp_path)) == ([content], ["set"])
    stop = pytest.raises(KeyboardInterrupt)
    with stop, atomic.replacing_folder(folder) as part:
        (part / "newer").touch()
        raise KeyboardInterrupt
    assert (names(folder), names(tmp_path)) == (["new"], ["set"])
    rename = Path.rename
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    monkeypatch.setattr(
        Path, "rename", lambda path, to: full() if to == folder and (path / "b").exists() else rename(path, to)
    )
    with pytest.raises(PastaError, match="set: No space left"), atomic.replacing_folder(folder) as part:
        (part / "b").touch()
    assert (names(folder), names(tmp_path)) == (["new"], ["set"])
    (tmp_path / "file").touch()
    for place in ("file", "file/set"):
        with pytest.raises(PastaError, match="choose a writable path"), atomic.replacing_folder(tmp_path / place):
            pass
    assert names(tmp_path) == ["file", "set"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_kill_while_a_folder_is_replaced_loses_neither(tmp_path, monkeypatch, exchange):
    """As seen after each rename: the folder is there, or its old content too young to be removed as abandoned."""
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    elif sys.platform != "linux":
        pytest.skip("needs Linux")
    folder, rename, kept = tmp_path / "set", Path.rename, []

    def renamed(path, to):
        rename(path, to)
        left = (part for part in tmp_path.glob(".set.*") if (part / "old").exists())
        kept.append(folder.is_dir() or any(time.time() - part.stat().st_mtime < 60 for part in left))

    fill(folder, "old")
    os.utime(folder, (0, 0))
    monkeypatch.setattr(Path, "rename", renamed)
    fill(folder, "new")
    assert kept == ([] if exchange else [True, True])
    assert (names(folder), names(tmp_path)) == (["new"], ["set"])


def test_a_mount_point_is_refused_before_the_work(tmp_path):
    link = tmp_path / "set"
    link.symlink_to("/dev")
    for folder in (link, Path("/dev")):
        with pytest.raises(PastaError, match=f"^{folder}: is a mount point"), atomic.replacing_folder(folder):
            pytest.fail("the work began")
