"""A command restarts once to get large pages, with its arguments, in the same process."""

import os
import subprocess
import sys

import pytest

from pasta_jax.device.malloc import TUNABLES, without_large_pages

SCRIPT = """
import os, sys
from pasta_jax.device.malloc import restart_on_large_pages
print(os.getpid(), flush=True)
restart_on_large_pages()
print(os.getpid(), os.environ.get("GLIBC_TUNABLES"), sys.argv[1:], flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's setting")
@pytest.mark.parametrize(("before", "after"), [(None, "glibc.malloc.hugetlb=1"), ("glibc.malloc.check=0",) * 2])
def test_a_command_restarts_once_unless_malloc_is_tuned(before, after):
    environment = {name: value for name, value in os.environ.items() if name != TUNABLES}
    environment |= {} if before is None else {TUNABLES: before}
    command = [sys.executable, "-c", SCRIPT, "--steps=3", "two words"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    *pids, last = result.stdout.splitlines()
    assert pids == [last.split()[0]] * (2 if before is None else 1)
    assert last == f"{pids[0]} {after} ['--steps=3', 'two words']"


def test_other_programs_start_without_large_pages(monkeypatch):
    monkeypatch.setenv(TUNABLES, "glibc.malloc.hugetlb=1")
    assert TUNABLES not in without_large_pages()
    monkeypatch.setenv(TUNABLES, "glibc.malloc.check=0")
    assert without_large_pages()[TUNABLES] == "glibc.malloc.check=0"
