"""A command restarts once to get large pages, with its arguments, in the same process."""

import os
import subprocess
import sys

import pytest

from pasta_jax.device.malloc import without_large_pages

SCRIPT = """
import os, sys
from pasta_jax.device.malloc import restart_on_large_pages
print(os.getpid(), flush=True)
restart_on_large_pages()
print(os.getpid(), os.environ.get("GLIBC_TUNABLES"), sys.argv[1:], flush=True)
"""


def lines_of(tunables: str | None) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    environment |= {} if tunables is None else {"GLIBC_TUNABLES": tunables}
    command = [sys.executable, "-c", SCRIPT, "--steps=3", "two words"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's setting")
def test_a_command_restarts_once_with_its_arguments_as_the_same_process():
    first, second, last = lines_of(None)
    assert first == second
    assert last == f"{first} glibc.malloc.hugetlb=1 ['--steps=3', 'two words']"


def test_other_programs_start_without_large_pages(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    assert "GLIBC_TUNABLES" not in without_large_pages()
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    assert without_large_pages()["GLIBC_TUNABLES"] == "glibc.malloc.check=0"


def test_a_tuned_malloc_is_left_alone():
    first, last = lines_of("glibc.malloc.check=0")
    assert last == f"{first} glibc.malloc.check=0 ['--steps=3', 'two words']"
