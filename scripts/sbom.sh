#!/usr/bin/env bash
# What is in a release, as CycloneDX 1.6 made from lock/: dist/calib-serve-VERSION-WHAT.cdx.json for the wheel
# with the extra `all`, and for what each image adds to its base; or only for the WHAT that are named.
# Locks say what is installed, not who asked for it: of that the tool warns.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${VENV:-.venv}/bin
out=${OUT:-dist}
mkdir -p "$out"
project=$(mktemp)
trap 'rm -f "$project"' EXIT
version=$("$bin/python" -c 'import calib_serve; print(calib_serve.__version__)')
sed "s/^dynamic = \[\"version\".*\]/version = \"$version\"/" pyproject.toml >"$project"

sbom() { # WHAT, and its locks
  local file=$out/calib-serve-$version-$1.cdx.json
  cat "${@:2}" | PYTHONWARNINGS=ignore::UserWarning "$bin/cyclonedx-py" requirements --pyproject "$project" \
    --mc-type application --spec-version 1.6 --output-reproducible --validate --output-file "$file" -
  # These two are not from PyPI.
  sed -i -E 's#https://pypi.org/simple/(torch|torchvision)/#https://download.pytorch.org/whl/cpu/\1/#' "$file"
}

[ $# -gt 0 ] || set -- all torchserve-image triton-image watch-image
for what; do
  case $what in
    all) sbom all lock/torch.txt lock/all.txt ;;
    torchserve-image) sbom torchserve-image lock/torch.txt lock/torchvision.txt lock/torchserve.txt ;;
    triton-image) sbom triton-image lock/triton.txt ;;
    watch-image) sbom watch-image lock/watch.txt ;;
    *) echo "there is no $what: all, torchserve-image, triton-image, watch-image" >&2; exit 2 ;;
  esac
done
