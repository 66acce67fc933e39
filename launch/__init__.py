"""The command-line scripts. A Python without the packages they need gets one line that says what to run."""

import importlib.util
import pathlib
import sys

if not all(map(importlib.util.find_spec, ("absl", "ml_collections", "msgspec"))):
    root = pathlib.Path(__file__).resolve().parent.parent
    activate = f"source {root}/.venv/bin/activate"
    command = activate if (root / ".venv/bin/python").exists() else f"bash {root}/launch/setup.sh && {activate}"
    print(f"error: {sys.executable} lacks the packages of this project; run: {command}", file=sys.stderr)
    sys.exit(2)
