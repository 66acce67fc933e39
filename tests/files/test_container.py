"""What a container leaves of a machine, as either version of Linux's control groups states it."""

import sys

import pytest

from pasta_jax.files import container


@pytest.mark.parametrize(
    ("files", "cpus", "memory"),
    [
        ({}, sys.maxsize, sys.maxsize),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n"}, sys.maxsize, sys.maxsize),
        ({"cpu.max": "250000 100000\n", "memory.max": "4096\n"}, 2, 4096),
        ({"cpu.max": "50000 100000\n"}, 1, sys.maxsize),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, sys.maxsize, sys.maxsize),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3, sys.maxsize),
        ({"memory/memory.limit_in_bytes": "8192\n"}, sys.maxsize, 8192),
    ],
)
def test_limits_of_containers(files, cpus, memory, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (container.cpus(tmp_path), container.memory(tmp_path)) == (cpus, memory)
