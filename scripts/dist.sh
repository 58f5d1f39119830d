#!/usr/bin/env bash
# What a release publishes, in dist/: source archive, wheel, constraints for users, bills of materials, and the SHA-256
# of each.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${VENV:-.venv}/bin
out=${OUT:-dist}
rm -rf "$out"
# The locked hatchling builds, and no index is asked.
PIP_NO_INDEX=1 "$bin/python" -m build --no-isolation --outdir "$out" .
for wheel in "$out"/calib_serve-*.whl; do
  version=${wheel##*/calib_serve-}
  cp calib_serve/constraints.txt "$out/calib-serve-${version%%-*}-constraints.txt"
done
OUT=$out scripts/sbom.sh
cd "$out"
sha256sum -- * >SHA256SUMS
