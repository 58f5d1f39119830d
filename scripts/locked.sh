#!/usr/bin/env bash
# Installs what locks name, and only files of the hashes there; nothing is resolved and no package's own code is run.
#   scripts/locked.sh PYTHON -r LOCK...                  into the environment of that Python
#   scripts/locked.sh PYTHON --target FOLDER -r LOCK...  into a folder of its own
# By uv, in seconds where pip takes minutes; by pip where uv cannot: pip alone knows the settings of pip's files.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$(realpath "${VENV:-.venv}")
uv=$venv/uv
python=$1
hashed=(--no-deps --require-hashes --only-binary=:all:)
pip=("$venv/bin/python" -m pip)
quiet=(--quiet --disable-pip-version-check)

if ! cmp -s "$root/lock/tools/uv.txt" "$uv/lock.txt"; then
  rm -rf "$uv"
  "${pip[@]}" install "${quiet[@]}" "${hashed[@]}" --no-compile --target "$uv" -r "$root/lock/tools/uv.txt"
  cp "$root/lock/tools/uv.txt" "$uv/lock.txt"
fi
"$uv/bin/uv" pip install --quiet --no-config --python "$python" "${hashed[@]}" "${@:2}" ||
  "${pip[@]}" --python "$python" install "${quiet[@]}" "${hashed[@]}" "${@:2}"
