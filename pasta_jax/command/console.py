"""The commands of an installed wheel: `pasta-decode` runs launch/decode.py, and so on, with the wheel's own configs."""

import re
import runpy
import sys
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
# In a wheel, launch/ and configs/ are inside the package: it installs no top-level packages of such general names.
_IN_WHEEL = _PACKAGE / "_scripts"
ROOT = _IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parent


def main() -> None:
    """Run the launch script that the command is named after."""
    name = Path(sys.argv[0]).stem.removeprefix("pasta-").replace("-", "_")
    sys.path.insert(0, str(ROOT))
    sys.argv[1:] = map(with_own_config, sys.argv[1:])
    runpy.run_module(f"launch.{name}", run_name="__main__", alter_sys=True)


def with_own_config(word: str) -> str:
    """A word of the command line; configs/file.py is the wheel's, unless there is one in the working directory."""
    match = re.fullmatch(r"(-[^=]*=)?(configs/\w+\.py)(:.*)?", word)
    if match is None or Path(match[2]).exists() or not (ROOT / match[2]).exists():
        return word
    return f"{match[1] or ''}{ROOT / match[2]}{match[3] or ''}"


def as_typed(page: str, root: Path = ROOT) -> str:
    """A text with each `python -m launch.decode` as the user types it: in a wheel, `pasta-decode`."""
    if root != _IN_WHEEL:
        return page
    return re.sub(r"python -m launch\.(\w+)", lambda match: f"pasta-{match[1].replace('_', '-')}", page)
