#!/usr/bin/env bash
# nox, over every Python that is installed here. pyenv's shims answer only for versions that are
# switched on, so all of them are.
set -euo pipefail
cd "$(dirname "$0")/.."
if command -v pyenv >/dev/null; then
  PYENV_VERSION=$(pyenv versions --bare --skip-aliases --skip-envs | paste -sd:)
  export PYENV_VERSION
fi
exec "${VENV:-.venv}/bin/nox" "$@"
