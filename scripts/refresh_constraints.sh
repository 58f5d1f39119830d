#!/usr/bin/env bash
# Renew constraints.txt: the newest releases that pyproject.toml allows, as one tested set.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[dev]'
{
  echo "# Made by scripts/refresh_constraints.sh with Python $("$venv/bin/python" -c 'import platform; print(platform.python_version())')."
  # A local build of torch (+cpu) has the version of the public one.
  "$venv/bin/python" -m pip freeze --exclude-editable | sed -E 's/^(torch==[0-9.]+)\+.*/\1/; /^(pip|setuptools|wheel)==/d' |
    sed -E 's/^onnxruntime-gpu==(.*)/onnxruntime-gpu==\1\nonnxruntime==\1/'
} >constraints.txt
