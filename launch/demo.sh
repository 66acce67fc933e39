#!/usr/bin/env bash
# Answer a question with SmolLM2-135M-Instruct on this machine, after installing what that needs.
#   launch/demo.sh ["a question"] [--flag=value ...]
# The first argument that is not a flag is the question (- reads it from stdin); the rest is passed to launch.decode.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
question='' flags=()
for argument; do
  if [[ -z $question && $argument != -?* ]]; then question=$argument; else flags+=("$argument"); fi
done

"$root/launch/setup.sh" --assets

# -P: a folder named launch or configs in the current directory must not shadow ours.
exec "$root/.venv/bin/python" -P -m launch.decode --config="$root/configs/decode.py:smollm2_135m" \
  --prompt="${question:-Give three tips for staying healthy.}" ${flags[@]+"${flags[@]}"}
