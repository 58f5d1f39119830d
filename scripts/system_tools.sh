#!/usr/bin/env bash
# The programs that tests start for real. Installs what is missing where this is a Debian
# machine and we may; elsewhere says what is missing, and the tests that need it skip.
set -euo pipefail

# Packages in folders of their own, of the hashes in lock/tools; more options come last.
beside() {
  "$(dirname "$0")/locked.sh" "${VENV:-.venv}/bin/python" --target "$1" -r "$(dirname "$0")/../lock/tools/$2.txt" "${@:3}" ||
    echo "$2 could not be installed; its tests skip, and fail where CI must not skip" >&2
}

# NVIDIA's tritonserver, from PyPI, with the numpy that its Python backend can read.
triton=${VENV:-.venv}/triton
if [ "$(uname -sm)" = "Linux x86_64" ] && [ ! -d "$triton/pytriton" ]; then
  beside "$triton" triton
fi

# KServe's and Kubernetes' models, which deploy/kserve.yaml is held against; without the servers around them.
kserve=${VENV:-.venv}/kserve
if [ ! -d "$kserve/kserve" ]; then
  beside "$kserve" kserve
fi

# OpenVINO and tract, which fused graphs are run by: ts.torch_handler would import OpenVINO for every model, were it installed.
for runtime in openvino tract; do
  if [ ! -d "${VENV:-.venv}/$runtime/$runtime" ]; then
    beside "${VENV:-.venv}/$runtime" "$runtime"
  fi
done

# llama.cpp's server, and what writes the small language model that it serves in tests.
llama=${VENV:-.venv}/llama
if [ ! -d "$llama/xllamacpp" ]; then
  beside "$llama" llama
fi

# Spark, where nothing may skip: half a gigabyte, of which there is no built package.
spark=${VENV:-.venv}/spark
whole=
if [ "${CI:-}" = true ] || [ "${CALIB_SERVE_TEST_SIZE:-}" = nightly ]; then whole=yes; fi
if [ "$whole" ] && [ ! -d "$spark/pyspark" ]; then
  beside "$spark" spark --no-binary pyspark --no-build-isolation
fi

# Other model servers, each in an environment of its own.
"$(dirname "$0")/server_environments.sh" || echo "not all model servers could be installed; their tests skip" >&2

declare -A package=(
  [promtool]=prometheus
  [prometheus]=prometheus
  [amtool]=prometheus-alertmanager
  [nginx]=nginx
  [curl]=curl
  [chromium]=chromium
  [chromedriver]=chromium-driver
)
if [ "$whole" ]; then package[java]=default-jre-headless; fi # for Spark

missing=()
for program in "${!package[@]}"; do
  command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
# Debian keeps the programs of each Postgres in a folder of its own.
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || missing+=(postgresql)
[ ${#missing[@]} -eq 0 ] && exit 0
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # No server may start by itself: the tests start their own, on ports of their own.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
elif [ "${CI:-}" = true ]; then
  echo "missing: ${missing[*]}; CI must not skip, so install them first" >&2
  exit 1
else
  echo "missing: ${missing[*]}; the tests that need them will skip" >&2
fi
