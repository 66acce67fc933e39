"""Files are whole or absent, whenever a write stops; a cut-off last line is not read."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files import atomic


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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


def test_a_growing_file_keeps_its_lines_when_interrupted(tmp_path):
    path = tmp_path / "new" / "lines"
    for text in ("one\n", "one\ntwo\n"):
        stop = pytest.raises(KeyboardInterrupt)
        with stop, atomic.growing(path, lines_so_far(path)) as file:
            file.write(text.splitlines()[-1] + "\n")
            raise KeyboardInterrupt
        assert names(path.parent) == ["lines.part"]
        assert atomic.part_of(path).read_text() == text
    with atomic.growing(path, ["other"]) as file:
        file.write("2\u2028\n")
    assert names(path.parent) == ["lines"]
    assert path.read_bytes() == "other\n2\u2028\n".encode()


def test_a_growing_file_keeps_its_lines_on_a_full_disk(tmp_path):
    path = tmp_path / "lines"
    full = pytest.raises(PastaError, match=r"lines\.part: the disk is full; free some space and rerun the command")
    with full, atomic.growing(path, ["one"]):
        raise OSError(28, os.strerror(28))
    assert lines_so_far(path) == ["one"]
    with pytest.raises(FileNotFoundError), atomic.growing(path):
        raise FileNotFoundError


def lines_so_far(path) -> list[str]:
    return [line.decode() for line in atomic.whole_lines(atomic.part_of(path))]


@pytest.mark.parametrize("old", [None, "old\n"])
def test_an_interrupted_write_leaves_what_was_there(tmp_path, old):
    path = tmp_path / "lines"
    if old:
        path.write_text(old)

    def lines():
        yield "first"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic.write_lines(path, lines())
    assert names(tmp_path) == (["lines"] if old else [])
    assert not old or path.read_text() == old


def test_a_killed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "lines"
    path.write_text("old\n")
    script = (
        "import os, pathlib, signal, sys\n"
        "from pasta_jax.files import atomic\n"
        "with atomic.replacing(pathlib.Path(sys.argv[1])) as part:\n"
        "    part.write_text('new, ' * 10_000)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, path]).returncode == -signal.SIGKILL
    assert path.read_text() == "old\n"


def test_a_reader_never_sees_a_partial_file(tmp_path):
    path = tmp_path / "lines"
    path.write_text("old\n")
    with atomic.replacing(path) as part:
        part.write_text("new\n")
        assert path.read_text() == "old\n"
        assert part.parent == path.parent  # or a rename could become a copy
    assert path.read_text() == "new\n"
    assert names(tmp_path) == ["lines"]


def test_a_path_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").write_text("")
    for path, reason in (
        (tmp_path / "file" / "a.json", "File exists"),
        (tmp_path / "folder", "Is a directory"),
        (tmp_path / ("a" * 300), "File name too long"),
    ):
        with pytest.raises(PastaError) as error:
            atomic.write_json(path, 1)
        assert str(error.value) == f"{path}: {reason}; choose a writable path on a disk with free space"
    assert names(tmp_path) == ["file", "folder"]


def test_a_full_disk_is_one_line_and_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text("old")

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(atomic.Path, "write_bytes", full)
    with pytest.raises(PastaError) as error:
        atomic.write_whole(path, "new")
    assert str(error.value) == f"{path}: No space left on device; choose a writable path on a disk with free space"
    assert path.read_text() == "old"


def test_a_folder_is_checked_by_writing(tmp_path):
    atomic.check_writable(tmp_path / "new/folder")
    assert names(tmp_path / "new/folder") == []
    (tmp_path / "file").touch()
    for folder in ("file", "file/below"):
        with pytest.raises(OSError, match=r"File exists|Not a directory"):
            atomic.check_writable(tmp_path / folder)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"cut", []),
        (b"a\n", [b"a"]),
        (b"a\nb", [b"a"]),
        (b"a\n\nb\n", [b"a", b"", b"b"]),
        ('"\u2028\u0085\x0b"\n'.encode(), ['"\u2028\u0085\x0b"'.encode()]),
        ("数\n数".encode()[:-1], ["数".encode()]),
    ],
)
def test_a_cut_off_last_line_is_not_read(tmp_path, content, lines):
    path = tmp_path / "lines"
    path.write_bytes(content)
    assert atomic.whole_lines(path) == lines


def test_a_missing_file_has_no_lines(tmp_path):
    assert atomic.whole_lines(tmp_path / "lines") == []


def test_json_lines_survive_a_cut_at_any_byte(tmp_path):
    path = tmp_path / "new" / "lines.jsonl"
    with atomic.JsonLines(path) as file:
        assert file.lines == []
        for value in ({"b": 1, "a": "数\u2028"}, [2], "three"):
            file.append(value)
    whole = path.read_bytes()
    assert whole == b'{"a": "\\u6570\\u2028", "b": 1}\n[2]\n"three"\n'
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with atomic.JsonLines(path) as file:
            assert file.lines == whole[:length].split(b"\n")[:-1]
            file.append(4)
        assert path.read_bytes() == b"".join(line + b"\n" for line in [*file.lines, b"4"])


def test_an_exclusive_file_has_one_writer(tmp_path):
    path = tmp_path / "lines.jsonl"
    with atomic.JsonLines(path, exclusive=True) as file:
        file.append(1)
        with pytest.raises(PastaError, match=r"lines\.jsonl: another process is writing it"):
            atomic.JsonLines(path, exclusive=True)
    with atomic.JsonLines(path, exclusive=True) as file:
        assert file.lines == [b"1"]
    with pytest.raises(PastaError, match="choose a writable folder"):
        atomic.JsonLines(path / "below")


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
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
    (tmp_path / "file").touch()
    with pytest.raises(PastaError, match="choose a writable path"), atomic.replacing_folder(tmp_path / "file" / "set"):
        pass


def test_one_block_at_a_time_for_a_path(tmp_path):
    inside, other = threading.Event(), tmp_path / "new/a.jsonl"

    def enter() -> None:
        with atomic.alone(other):
            inside.set()

    second = threading.Thread(target=enter)
    with atomic.alone(other):
        second.start()
        assert not inside.wait(0.2)
        with atomic.alone(tmp_path / "new/b.jsonl"):
            assert names(tmp_path / "new") == ["a.jsonl.lock", "b.jsonl.lock"]
    second.join(60)
    assert inside.is_set()
    assert names(tmp_path / "new") == []
