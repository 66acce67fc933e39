"""Huge pages for a command's memory: without them, each training step on the CPU page-faults gigabytes.

glibc returns large allocations to the system when they are freed, so that Linux maps and zeroes them again at the next
step. In pages of 4 KiB, this took a seventh of a step.
"""

import os
import sys

TUNABLES = "GLIBC_TUNABLES"  # read when a process starts; systems without glibc ignore it
LARGE_PAGES = "glibc.malloc.hugetlb=1"


def restart_on_large_pages() -> None:
    """Start this command again with malloc on pages of 2 MiB, unless the environment tunes malloc already."""
    if sys.platform != "linux" or TUNABLES in os.environ:
        return
    os.environ[TUNABLES] = LARGE_PAGES
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def without_large_pages() -> dict[str, str]:
    """The environment for another program, as this command was first started with."""
    return {name: value for name, value in os.environ.items() if (name, value) != (TUNABLES, LARGE_PAGES)}
