#!/usr/bin/env bash
# What a release publishes, in dist/: source archive, wheel, bills of materials, and the SHA-256 of each.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${VENV:-.venv}/bin
out=${OUT:-dist}
rm -rf "$out"
# The locked hatchling builds, and no index is asked.
PIP_NO_INDEX=1 "$bin/python" -m build --no-isolation --outdir "$out" .
OUT=$out scripts/sbom.sh
cd "$out"
sha256sum -- * >SHA256SUMS
