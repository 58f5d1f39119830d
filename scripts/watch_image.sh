#!/usr/bin/env bash
# calib-serve watch as an image without torch, and without a container engine: Debian's Python 3.11, the packages of
# lock/watch.txt but PostgreSQL's driver, and the wheel of this checkout. It runs there and counts a label; then its size
# is said, which is at most 250 MB. As root, of Debian:
#   scripts/watch_image.sh           look alone
#   scripts/watch_image.sh FILE.tar  keep it: docker import -c 'ENTRYPOINT ["python3","-m","calib_serve","watch"]' FILE.tar
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${VENV:-.venv}")/bin
command -v mmdebstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq mmdebstrap >/dev/null; }
scratch=$(mktemp -d)
image=$scratch/image
watch=
trap '[ -z "$watch" ] || kill "$watch"; rm -rf "$scratch"' EXIT

# Packages' files alone, without apt, shell and scripts; C's tables of other encodings serve no Python.
left_out=('/usr/share/doc/*' '/usr/share/man/*' '/usr/share/info/*' '/usr/share/locale/*' '/usr/lib/*/gconv/*')
mmdebstrap --quiet --mode=root --variant=extract --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
  "${left_out[@]/#/--dpkgopt=path-exclude=}" --include=base-files,python3,libstdc++6,ca-certificates \
  bookworm "$image" >"$scratch/log"
cat "$image"/usr/share/ca-certificates/mozilla/*.crt >"$image/etc/ssl/certs/ca-certificates.crt"

site=$image/usr/local/lib/python3.11/dist-packages
awk '/^[a-z]/ { other = !/^psycopg/ } NR == 1 || other' lock/watch.txt >"$scratch/lock.txt"
VENV=${bin%/bin} scripts/locked.sh "$bin/python" --target "$site" -r "$scratch/lock.txt"
rm -rf "$site/bin"
PIP_NO_INDEX=1 "$bin/python" -m build --wheel --no-isolation --outdir "$scratch" . >"$scratch/log"
"$bin/python" -m pip install --quiet --no-deps --no-index --no-compile --target "$site" "$scratch"/*.whl
find "$site" -type d \( -name tests -o -name test \) -prune -exec rm -r {} +
install -d -m 1777 "$image/state" "$image/tmp"
size=$(find "$image" -type f -printf '%s\n' | awk '{ all += $1 } END { printf "%.0f", all / 1e6 }')
tar -C "$image" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$scratch/image.tar" .
sent=$(gzip -c "$scratch/image.tar" | wc -c | awk '{ printf "%.0f", $1 / 1e6 }')

inside=(env -i PYTHONDONTWRITEBYTECODE=1 "$(command -v chroot)" --userspec=10001:10001 "$image" /usr/bin/python3)
"${inside[@]}" -c 'import importlib.util as u; assert u.find_spec("torch") is None'
"${inside[@]}" -m calib_serve doctor --for watch --json >"$scratch/doctor.json" || { cat "$scratch/doctor.json" >&2; exit 1; }
"${inside[@]}" -m calib_serve keys new /state/keys.json
port=$("$bin/python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${inside[@]}" -m calib_serve watch m:1=3 --keyring /state/keys.json --ledger /state/ledger.db --port "$port" &
watch=$!
ask() { curl --silent --show-error --fail --noproxy '*' -H 'Content-Type: application/json' "http://127.0.0.1:$port$1" "${@:2}"; }
for _ in $(seq 300); do ask /healthz 2>"$scratch/log" >&2 && break || sleep 0.2; done
served=$(ask /v1/predictions -d '[{"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}]')
receipt=$(sed -E 's/.*"receipt": ?"([^"]+)".*/\1/' <<<"$served")
ask /v1/labels -d "[{\"receipt\": \"$receipt\", \"label\": 1}]" | grep -q '"accepted": \?1'

[ $# -eq 0 ] || install -m 644 "$scratch/image.tar" "$1"
echo "calib-serve watch counts in an image of $size MB, $sent MB as it is sent"
[ "$size" -le 250 ]
