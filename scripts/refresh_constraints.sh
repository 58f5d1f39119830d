#!/usr/bin/env bash
# Renew constraints.txt, the newest releases that pyproject.toml allows, as one tested set; and
# constraints-3.10.txt, which the ground and watch are tested with on Python 3.10.
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
  "$venv/bin/python" -m pip freeze --exclude-editable | sed -E 's/^(torch(vision)?==[0-9.]+)\+.*/\1/; /^(pip|setuptools|wheel)==/d' |
    sed -E 's/^onnxruntime-gpu==(.*)/onnxruntime-gpu==\1\nonnxruntime==\1/'
} >constraints.txt
if "${PYTHON310:-python3.10}" -V >/dev/null 2>&1; then
  "${PYTHON310:-python3.10}" -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check '.[watch]' \
    pytest pytest-xdist hypothesis httpx scikit-learn psutil
  {
    echo "# Made by scripts/refresh_constraints.sh with Python $("$venv/bin/python" -c 'import platform; print(platform.python_version())')."
    "$venv/bin/python" -m pip freeze | sed -E '/^calib-serve /d; /^(pip|setuptools|wheel)==/d'
  } >constraints-3.10.txt
fi
