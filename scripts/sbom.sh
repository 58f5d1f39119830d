#!/usr/bin/env bash
# What is in a release, as CycloneDX 1.6 made from lock/: dist/calib-serve-VERSION-WHAT.cdx.json for the wheel
# with the extra `all`, and for what each image adds to its base. Locks say what is installed, not who asked for it:
# of that the tool warns.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${VENV:-.venv}/bin
out=${OUT:-dist}
version=$("$bin/python" -c 'import calib_serve; print(calib_serve.__version__)')
mkdir -p "$out"

sbom() { # WHAT, and its locks
  cat "${@:2}" | PYTHONWARNINGS=ignore::UserWarning "$bin/cyclonedx-py" requirements --pyproject pyproject.toml --mc-type "${type:-library}" \
    --spec-version 1.6 --output-reproducible --validate --output-file "$out/calib-serve-$version-$1.cdx.json" -
}

sbom all lock/torch.txt lock/all.txt
type=application
sbom torchserve-image lock/torch.txt lock/torchvision.txt lock/torchserve.txt
sbom triton-image lock/triton.txt
