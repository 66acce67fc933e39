#!/usr/bin/env bash
# Run all checks: ruff and import-linter where they are installed (setup.sh --dev), then pytest.
#   launch/test.sh                 every test, in two processes
#   launch/test.sh quick           without real weights, the TPU compiler, and tests that take long or kill processes
#   launch/test.sh [quick] ARGS    the arguments are pytest's; paths are relative to the repository root
# The exit code is pytest's, or ruff's if all tests pass.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/launch/setup.sh"
cd "$root"
python=.venv/bin/python

selection=()
if [[ ${1:-} == quick ]]; then
  selection=(-m "not real and not tpu and not slow")
  export PASTA_JAX_QUICK=1 # fewer examples: tests/helpers/examples.py
  shift
fi

lint=0
if [[ -x .venv/bin/ruff ]]; then
  "$python" -m ruff check --quiet --output-format=concise || lint=1
  "$python" -m ruff format --check --quiet --output-format=concise || lint=1
  .venv/bin/lint-imports --no-cache >/dev/null || lint=1
fi

# A full run is split by file over two processes: compiling takes much of the time and uses one core.
if (($# == 0)); then set -- -n 2 --dist loadfile --no-loadscope-reorder; fi
# Eight simulated devices on few cores deadlock in an all-reduce unless the thread pool has more than eight threads.
code=0
JAX_PLATFORMS=cpu NPROC=32 "$python" -m pytest -p tests.skips -r fEX ${selection[@]+"${selection[@]}"} "$@" || code=$?
if ((lint)); then echo "a linter failed: run ruff check, ruff format and lint-imports of .venv/bin" >&2; fi
exit $((code ? code : lint))
