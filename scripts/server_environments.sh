#!/usr/bin/env bash
# Environments of other model servers, for tests and examples: each has what its lock names, and no more.
#   scripts/server_environments.sh NAME...   $VENV/servers/NAME, of lock/servers/NAME.txt
#   scripts/server_environments.sh           all that lock/servers has
# uv shares the files of its cache among them. The package under test is not in them: tests and examples run with
# PYTHONPATH at a checkout.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$(realpath "${VENV:-.venv}")

if [ $# -eq 0 ]; then
  mapfile -t names < <(cd "$root/lock/servers" && printf '%s\n' *.txt)
  set -- "${names[@]%.txt}"
fi
for name in "$@"; do
  lock=$root/lock/servers/$name.txt
  [ -f "$lock" ] || { echo "there is no lock/servers/$name.txt" >&2; exit 1; }
  folder=$venv/servers/$name
  # The lock is copied last: one that was interrupted is made anew.
  if cmp -s "$lock" "$folder/lock.txt" && "$folder/bin/python" -c '' 2>/dev/null; then continue; fi
  rm -rf "$folder"
  "$venv/bin/python" -m venv --without-pip "$folder"
  "$root/scripts/locked.sh" "$folder/bin/python" -r "$lock"
  cp "$lock" "$folder/lock.txt"
done
