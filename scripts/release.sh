#!/usr/bin/env bash
# A release, ready to be signed and published: `make release`. It checks what must agree, builds by scripts/dist.sh, looks
# at what a package index would show, and says what is left to do. It tags nothing and pushes nothing.
#   scripts/release.sh          build into dist/
#   scripts/release.sh --check  look alone, and build nothing
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${VENV:-.venv}")/bin
out=${OUT:-dist}

[ -z "$(git status --porcelain)" ] || { echo "commit or stash first: a release is of a commit" >&2; git status --short >&2; exit 1; }
notes=$(mktemp)
trap 'rm -f "$notes"' EXIT
version=$("$bin/python" scripts/release_notes.py "$notes")
if git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null; then
  # A tag that is of this commit is what a release workflow starts from.
  [ "$(git rev-parse "v$version^{commit}")" = "$(git rev-parse HEAD)" ] ||
    { echo "v$version is the tag of another commit: raise the version" >&2; exit 1; }
fi
[ "${1:-}" != --check ] || { echo "$version can be released"; exit 0; }

OUT=$out VENV=${VENV:-.venv} scripts/dist.sh
install -m 644 "$notes" "$out/RELEASE_NOTES.md"
"$bin/python" scripts/release_metadata.py "$out"
cat <<SAID

$out/ holds calib-serve $version. To publish it:
  git tag --sign v$version -m "calib-serve $version"
  cosign sign-blob --bundle $out/SHA256SUMS.sigstore.json $out/SHA256SUMS
  git push origin v$version
SAID
