#!/usr/bin/env bash
# Answers one question on this machine with SmolLM2-135M-Instruct, installing what that needs first.
#   launch/demo.sh ["a question"] [--flag=value ...]
# The first argument that is no flag is the question (- reads it from stdin); the rest goes to launch.decode as it stands.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
question='' flags=()
for argument; do
  if [[ -z $question && $argument != -?* ]]; then question=$argument; else flags+=("$argument"); fi
done

"$root/launch/setup.sh" --assets

# Compiled programs are kept between runs, so that the second start is quick.
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-${PASTA_JAX_CACHE:-$HOME/.cache/pasta_jax}/xla}
# -P: a folder named launch or configs where the user stands must not be taken for ours.
exec "$root/.venv/bin/python" -P -m launch.decode --config="$root/configs/decode.py:smollm2_135m" \
  --prompt="${question:-Give three tips for staying healthy.}" ${flags[@]+"${flags[@]}"}
