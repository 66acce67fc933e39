"""What a container leaves of a machine, by Linux's control groups of either version."""

import sys
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_NONE = "max"  # no limit


def _read(*files: Path) -> list[str]:
    """The words of the first of these files that is there."""
    return next((file.read_text().split() for file in files if file.is_file()), [_NONE])


def cpus(groups: Path = CGROUPS) -> int:
    """Whole CPUs of the share of time; as good as unlimited without one."""
    share, *period = _read(groups / "cpu.max", groups / "cpu/cpu.cfs_quota_us")
    [us] = period or _read(groups / "cpu/cpu.cfs_period_us")
    return max(1, int(share) // int(us)) if share not in (_NONE, "-1") else sys.maxsize


def memory(groups: Path = CGROUPS) -> int:
    """Bytes; as good as unlimited without a limit."""
    [limit] = _read(groups / "memory.max", groups / "memory/memory.limit_in_bytes")
    return int(limit) if limit != _NONE else sys.maxsize
