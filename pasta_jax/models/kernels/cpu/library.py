"""The kernels in rows.cc as a library: compiled once by the system's compiler or the package ziglang, then kept.

Where that fails, products remain XLA's. That is said in one line, and is never an error.
"""

import ctypes
import functools
import hashlib
import importlib.util
import itertools
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import jaxlib

from pasta_jax.errors import PastaError
from pasta_jax.files import container, packages
from pasta_jax.files.atomic import replacing
from pasta_jax.files.lock import locked
from pasta_jax.progress import doing, say

SOURCE = Path(__file__).with_name("rows.cc")
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread", "-w")
MOST_S = 600  # of compiling; it takes half a minute, and with ziglang a minute more once for its standard library


def headers() -> Path:
    """XLA's headers, as `jax.ffi.include_dir` states them. That would import all of JAX."""
    return Path(jaxlib.__file__).with_name("include")


def compilers() -> list[list[str]]:
    """Commands to try, in this order; `CXX` comes first."""
    system = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    commands = [shlex.split(command) for command in system]
    found = [command for command in commands if command and shutil.which(command[0])][:1]
    if importlib.util.find_spec("ziglang"):
        found.append([sys.executable, "-m", "ziglang", "c++"])
    return found


@functools.cache
def version() -> str:
    """A name for what the library is compiled from. Programs that call it name it too, and never find another."""
    sources = (path.read_bytes() for path in (SOURCE, *sorted(SOURCE.parent.glob("*.h"))))
    system = (platform.system(), platform.machine(), *platform.libc_ver())  # an update of Linux changes none of these
    parts = (*sources, *map(str.encode, (*FLAGS, jaxlib.__version__, *system)))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def compiled() -> Path:
    """The compiled library, in the cache; a PastaError says why there is none.

    Its name can be computed by anyone, and loading it runs it. So it, and the checksum beside it, must lie in folders
    that only this user or root can write. A library that lacks its checksum or differs from it is compiled again.
    """
    folder = packages.cache_dir() / "kernels"
    folder.mkdir(mode=0o700, exist_ok=True)
    refuse_others(folder)
    path = folder / f"rows-{version()}.so"
    checksum = path.with_suffix(".sha256")
    if is_whole(path, checksum):
        return path
    with locked(path.with_suffix(".lock"), path, wait=True):  # processes that start together compile it once
        if not is_whole(path, checksum):
            with doing("compiling kernels for this CPU"), replacing(path) as part:
                compile_to(part)
                part.chmod(0o700)  # whatever the umask, for refuse_others
            with replacing(checksum) as part:
                part.write_text(hashlib.sha256(path.read_bytes()).hexdigest())
                part.chmod(0o600)
    return path


def is_whole(path: Path, checksum: Path) -> bool:
    """Whether a library is what was compiled: loading a truncated one ends the process."""
    if not (path.is_file() and checksum.is_file()):
        return False
    for file in (path, checksum):
        refuse_others(file)
    return hashlib.sha256(path.read_bytes()).hexdigest() == checksum.read_text(errors="replace")


def refuse_others(path: Path) -> None:
    """Refuse a file or folder that another user could have written, and the folders above that others may replace."""
    for place in (path, *path.resolve().parents):
        about = place.stat()
        writers = stat.S_IWOTH if about.st_gid == about.st_uid else stat.S_IWGRP | stat.S_IWOTH  # a user's own group
        is_open = about.st_mode & writers and not about.st_mode & stat.S_ISVTX
        if about.st_uid not in (0, os.geteuid()) or is_open:
            raise PastaError(f"{place}: other users can write there; set PASTA_JAX_CACHE to a folder of your own")


def compile_to(target: Path) -> None:
    """Compile with the first compiler that can; its assembler may be older than it is, and lack AVX-VNNI."""
    problems = []
    for compiler, less in itertools.product(compilers(), ([], ["-DWITHOUT_AVXVNNI"])):
        command = [*compiler, *FLAGS, *less, f"-I{headers()}", str(SOURCE), "-o", str(target)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as error:
            problems.append(f"{shlex.join(compiler)}: {error}")
            continue
        if done.returncode == 0:
            return
        lines = done.stderr.splitlines() or ["no message"]
        first = next((line for line in lines if "error" in line), lines[0])
        problems.append(f"{shlex.join(compiler)}: {first.strip()}")
    raise PastaError(problems[0] if problems else "no C++ compiler; install g++ or clang++, or: pip install ziglang")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, loaded, with a thread per core; None, after a line that says why, if there can be none."""
    try:
        loaded = ctypes.CDLL(str(compiled()))
    except (PastaError, OSError) as error:
        say(f"decoding with XLA's products, which are slower with several rows: {error}")
        return None
    loaded.pasta_level_name.restype = ctypes.c_char_p
    loaded.pasta_threads(cores())
    return loaded


def cores(system: Path = Path("/sys")) -> int:
    """Physical cores that this process may use: a second thread of a core adds nothing to reading memory."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = set()
    for cpu in usable:
        file = system / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings.add(file.read_text() if file.exists() else str(cpu))
    return min(len(siblings), container.cpus(system / "fs/cgroup"))


if __name__ == "__main__":  # launch/setup.sh compiles ahead of the first use
    sys.exit(library() is None)
