#!/usr/bin/env bash
# Makes a row of other releases (requirements/NAME.txt) in the user's cache, once, and prints its folder.
#   scripts/row.sh transformers-5.5   packages alone, to be named first in PYTHONPATH (ray-2.48 too)
#   scripts/row.sh vllm-0.23          an environment of its own with the packages for testing (5.8 GB, some minutes)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset VIRTUAL_ENV PYTHONHOME PYTHONPATH

name=${1:?which row? transformers-5.5, ray-2.48 or vllm-0.23}
lock="requirements/$name.txt"
[ -f "$lock" ] || { printf 'error: %s: no such lock\n' "$lock" >&2; exit 2; }
python=${PYTHON:-.venv/bin/python}
folder="${XDG_CACHE_HOME:-$HOME/.cache}/ascent/rows/$name-$(sha256sum "$lock" | cut -c1-8)"
if [ ! -f "$folder/.complete" ]; then
  printf 'installing %s packages of %s into %s\n' "$(grep -c '==' "$lock")" "$lock" "$folder" >&2
  rm -rf "$folder"
  case "$name" in
    transformers-* | ray-*)
      "$python" -m pip install --quiet --no-deps --target "$folder" -r "$lock" >&2
      ;;
    *)
      "$python" -m venv "$folder"
      "$folder/bin/python" -m pip install --quiet --no-deps -r "$lock" -r requirements/dev.txt >&2
      ;;
  esac
  touch "$folder/.complete"
fi
printf '%s\n' "$folder"
