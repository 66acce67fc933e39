#!/usr/bin/env bash
# The one entry for checks: ruff where it is installed (setup.sh --dev), then pytest with the arguments given here.
# Paths are relative to the repository root. The exit code is pytest's; if all is well there, ruff's.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/launch/setup.sh"
cd "$root"
python=.venv/bin/python

lint=0
if [[ -x .venv/bin/ruff ]]; then
  "$python" -m ruff check --quiet --output-format=concise || lint=1
  "$python" -m ruff format --check --quiet --output-format=concise || lint=1
fi

# Everything at once goes file by file to two processes: much of the time is compiling, which uses one core.
if (($# == 0)); then set -- -n 2 --dist loadfile; fi
# Eight simulated devices on few cores dead-lock in an all-reduce unless the thread pool is larger than they are many.
code=0
JAX_PLATFORMS=cpu NPROC=32 "$python" -m pytest -p tests.skips -r fEX "$@" || code=$?
if ((lint)); then echo "ruff is not content: see the top, or run .venv/bin/python -m ruff check && .venv/bin/python -m ruff format" >&2; fi
exit $((code ? code : lint))
