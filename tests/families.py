"""`python -m tests.families [FAMILY …]`: families of models beside other programs, as a table of differences."""

import sys
import tempfile
from pathlib import Path

from tests.helpers.families import CHECKS, VARIANTS, applies, difference


def main() -> None:
    """Print the table."""
    print(f"| family | {' | '.join(CHECKS)} |")
    print("|---" * (1 + len(CHECKS)) + "|")
    for kind in sys.argv[1:] or VARIANTS:
        cells = []
        for check in CHECKS:
            with tempfile.TemporaryDirectory() as folder:
                cells.append(f"{difference(check, kind, Path(folder)):.0e}" if applies(check, kind) else "")
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
