"""A command on large pages: in each training step on the CPU, Linux provides and zeroes gigabytes of memory anew.

glibc returns large allocations to the system when they are freed. In pages of 4 KiB, this took a seventh of a step.
"""

import os
import sys

TUNABLES = "GLIBC_TUNABLES"  # read when a process starts; systems without glibc ignore it


def restart_on_large_pages() -> None:
    """Start this command again with malloc on pages of 2 MiB, unless the environment tunes malloc already."""
    if sys.platform != "linux" or TUNABLES in os.environ:
        return
    os.environ[TUNABLES] = "glibc.malloc.hugetlb=1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
