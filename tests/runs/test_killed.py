"""SIGKILL: a run goes on from its records, no result is half written, and a dead process holds no lock."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files.atomic import write_whole
from pasta_jax.files.workdir import LOCK, claim
from tests import ROOT
from tests.helpers.killed_run import TOTAL

pytestmark = pytest.mark.slow


def start(folder: Path, where: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.helpers.killed_run", str(folder), where]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def computed(folder: Path, where: str) -> list[int]:
    """The numbers that a process computed until it was killed, or ended if `where` is empty."""
    with start(folder, where) as process:
        lines = process.stdout.read().splitlines()
    assert process.returncode == (-signal.SIGKILL if where else 0)
    return [int(line.split()[1]) for line in lines if line != "waiting"]


def kept(folder: Path) -> list[int]:
    """The numbers of the whole lines in the file of records."""
    _, *lines = (folder / "records.jsonl").read_text().split("\n")[:-1]
    return [number for number, _ in map(json.loads, lines)]


def test_no_record_is_lost_or_computed_twice(tmp_path):
    assert computed(tmp_path, "computing") == kept(tmp_path) == [0, 1]
    assert computed(tmp_path, "record") == [2]  # which was cut off
    assert kept(tmp_path) == [0, 1]
    assert computed(tmp_path, "result") == [2, 3, 4, 5]
    assert not (tmp_path / "result").exists()
    assert computed(tmp_path, "") == []
    assert kept(tmp_path) == list(range(TOTAL))
    assert (tmp_path / "result").read_text() == "".join(f"square of {n}\n" for n in range(TOTAL))


def test_a_killed_write_leaves_what_was_there_and_the_next_one_works(tmp_path):
    write_whole(tmp_path / "result", "old")
    computed(tmp_path, "result")
    assert (tmp_path / "result").read_text() == "old"
    assert len([*tmp_path.glob(".result.*.part")]) == 1
    write_whole(tmp_path / "result", "new")
    assert (tmp_path / "result").read_text() == "new"


def test_a_lock_names_its_living_owner_and_is_free_when_it_is_killed(tmp_path):
    followed = threading.Event()

    def follow() -> None:
        with claim(tmp_path, wait=True):
            followed.set()

    waiting = threading.Thread(target=follow)
    with start(tmp_path, "waiting") as process:
        assert "waiting\n" in iter(process.stdout.readline, "")
        with pytest.raises(PastaError, match=f"in use by process {process.pid} on "), claim(tmp_path):
            pytest.fail("two owners")
        waiting.start()
        assert not followed.wait(0.2)
        process.kill()
    waiting.join(60)
    assert followed.is_set()
    (tmp_path / LOCK).write_text("elsewhere 1\n")  # of a process that was killed
    with claim(tmp_path):
        assert str(os.getpid()) in (tmp_path / LOCK).read_text()
