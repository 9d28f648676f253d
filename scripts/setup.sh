#!/usr/bin/env bash
# Creates .venv and installs the locked packages named by the arguments (files in requirements/, without .txt).
# Does nothing, and needs no network, when they are installed already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset VIRTUAL_ENV PYTHONHOME PYTHONPATH

say() { printf '\033[1m%s\033[0m\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 2; }

find_python() {
  for name in ${PYTHON:-} python3.11 python3.12 python3; do
    # A shim may exist for a version that is not installed: only one that runs counts.
    if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  fail "no Python 3.11 or 3.12 found; install one, or name it: make PYTHON=/path/to/python3.11 ..."
}

install_torch_first() {
  # The CPU build stands in pip's configured links, or on PyTorch's own index.
  local wanted
  wanted=$(grep '^torch==' requirements/cpu.txt)
  if .venv/bin/python -c "import sys; from importlib.metadata import version; sys.exit(version('torch') != '${wanted#torch==}')" 2>/dev/null; then
    return
  fi
  say "installing ${wanted}"
  .venv/bin/pip install --quiet --no-deps "$wanted" 2>/dev/null ||
    .venv/bin/pip install --quiet --no-deps --index-url https://download.pytorch.org/whl/cpu "$wanted" ||
    fail "${wanted} can't be had from pip's links nor from PyTorch's index; see docs/install.md"
}

install() {
  local file="requirements/$1.txt" stamp=".venv/.installed-$1" digest
  [ -f "$file" ] || fail "$file: no such lock"
  digest=$(sha256sum "$file" | cut -d' ' -f1)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$digest" ]; then
    return
  fi
  if [ "$1" = cpu ]; then install_torch_first; fi
  say "installing $(grep -c '==' "$file") packages of $file (cpu: about 4 minutes and 2 GB the first time)"
  .venv/bin/pip install --no-deps -r "$file" 2>&1 | sed -un 's/^Collecting /  /p; s/^Installing collected.*/  unpacking/p; /^ERROR/p'
  printf '%s' "$digest" >"$stamp"
}

if [ ! -x .venv/bin/python ]; then
  python=$(find_python)
  say "creating .venv with $("$python" --version)"
  "$python" -m venv .venv
fi
for lock in "$@"; do
  case "$lock" in
    transformers-*) scripts/row.sh "$lock" >/dev/null ;;
    *) install "$lock" ;;
  esac
done
digest=$(sha256sum pyproject.toml | cut -d' ' -f1)
if [ ! -x .venv/bin/ascent ] || [ "$(cat .venv/.installed-ascent 2>/dev/null)" != "$digest" ]; then
  say "installing ascent itself"
  .venv/bin/pip install --quiet --no-deps --no-build-isolation --editable .
  printf '%s' "$digest" >.venv/.installed-ascent
fi
