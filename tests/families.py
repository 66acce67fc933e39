"""`python -m tests.families [FAMILY …]`: families of models beside other programs, as a table of differences.

The last column needs `bash launch/setup.sh --tpu`: the loop and a training step, compiled for eight chips of a v5e.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path

from tests.helpers.families import CHECKS, VARIANTS, applies, difference
from tests.helpers.for_tpu import family


def main() -> None:
    """Print the table."""
    print(f"| family | {' | '.join(CHECKS)} | TPU |")
    print("|---" * (2 + len(CHECKS)) + "|")
    for kind in sys.argv[1:] or VARIANTS:
        cells = []
        for check in CHECKS:
            with tempfile.TemporaryDirectory() as folder:
                cells.append(f"{difference(check, kind, Path(folder)):.0e}" if applies(check, kind) else "")
        compiled = family(kind) if importlib.util.find_spec("libtpu") else {}
        cells.append("compiles" if compiled and all(program["kernels"] for program in compiled.values()) else "")
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
