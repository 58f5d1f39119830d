#!/usr/bin/env bash
# The versions that are tested together, and the hashes of their files, by uv:
#   scripts/refresh_constraints.sh             for what pyproject.toml asks for; pins stay as they are
#   scripts/refresh_constraints.sh --upgrade   the newest releases that it allows
# constraints.txt pins versions for what is built here; constraints-3.10.txt those of Python 3.10;
# calib_serve/constraints.txt is for users, of both. lock/*.txt hold the same versions with hashes, for
# `pip install --require-hashes --no-deps`.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.9

made="Made by scripts/refresh_constraints.sh"
platform=x86_64-manylinux_2_28
compile() { "$tools/bin/uv" pip compile --quiet --no-header --python-platform "$platform" "$@" >"$tools/log"; }

pins() { # FILE, PYTHON, and what uv reads: FILE's pins stay, unless --upgrade is among it
  compile --no-annotate --output-file "$1" --python-version "${@:2}"
  sed -i "1i # $made, for Python $2." "$1"
}

lock() { # FILE, PYTHON, and what uv reads; torch and torchvision are in files of their own
  compile --generate-hashes --no-emit-package torch --python-version "${@:2}"
  { echo "# $made, for Python $2: pip install --require-hashes --no-deps -r $1"; cat "$tools/log"; } >"$1"
}

# gpu beside onnx for its pin; no lock has both.
pins constraints.txt 3.11.7 pyproject.toml --extra dev --extra gpu "$@"
printf '%s\n' pytest pytest-xdist hypothesis httpx scikit-learn psutil |
  pins constraints-3.10.txt 3.10 pyproject.toml - --extra postgres "$@"
# For users: of the same versions those that the extras bring. mlflow holds others back, and is not among them.
compile --no-annotate --python-version 3.11.7 pyproject.toml --extra all --extra gpu --extra hugging-face -c constraints.txt
mv "$tools/log" "$tools/3.11.txt"
compile --no-annotate --python-version 3.10 pyproject.toml --extra postgres -c constraints-3.10.txt
mv "$tools/log" "$tools/3.10.txt"
"$tools/bin/python" scripts/user_constraints.py "$tools/3.11.txt" "$tools/3.10.txt" >calib_serve/constraints.txt

same=(-c constraints.txt)
echo hatchling editables | tr ' ' '\n' | lock lock/build.txt 3.11.7 - "${same[@]}"
lock lock/all.txt 3.11.7 pyproject.toml --extra all "${same[@]}"
lock lock/dev.txt 3.11.7 pyproject.toml --extra dev "${same[@]}"

# The images: of the watch alone, and of TorchServe. torchvision and captum are what TorchServe's image_classifier imports; torchvision is of the CPU
# build there, as torch is.
lock lock/watch.txt 3.11.7 pyproject.toml --extra postgres "${same[@]}"
image=(--extra torchserve --extra onnx --extra postgres --no-emit-package torchvision "${same[@]}")
printf '%s\n' captum torchvision | lock lock/torchserve.txt 3.11.7 pyproject.toml - "${image[@]}"
printf '%s\n' captum torchvision transformers | lock lock/transformers.txt 3.11.7 pyproject.toml - "${image[@]}"
# Triton's Python is 3.10, and its Python backend, built for numpy 1, misreads the arrays of numpy 2.
grep -v '^numpy==' constraints-3.10.txt >"$tools/triton.txt"
echo 'numpy<2' | lock lock/triton.txt 3.10 pyproject.toml - --extra postgres --no-annotate -c "$tools/triton.txt"
echo hatchling | lock lock/triton-build.txt 3.10 - --no-annotate -c "$tools/triton.txt"

# What scripts/system_tools.sh puts into folders of their own, for tests.
platform=x86_64-manylinux_2_35
tool() { printf '%s\n' "${@:2}" | lock "lock/tools/$1.txt" 3.11.7 - --no-deps; }
tool triton nvidia-pytriton==0.7.0 numpy==1.26.4
tool kserve kserve==0.21.0 kubernetes==34.1.0 six==1.17.0
tool openvino openvino==2026.4.1
tool tract tract==0.23.9
tool llama xllamacpp==2026.10.11549 gguf==0.19.0
tool spark pyspark==4.3.0 py4j==0.10.9.9
tool uv uv==0.13.9

# Other model servers, each in an environment of its own (scripts/server_environments.sh), with what calib-serve
# itself asks for, and prometheus-client, which a reporter's metrics need.
upgrade=("$@")
server() { # NAME, and what its users install: its pins stay, unless --upgrade
  local file=lock/servers/$1.txt
  printf '%s\n' prometheus-client "${@:2}" |
    compile --no-annotate --generate-hashes --output-file "$file" --python-version 3.11.7 pyproject.toml - "${upgrade[@]}"
  sed -i "1i # $made, for Python 3.11.7; installed by scripts/server_environments.sh $1" "$file"
}
server litserve litserve==0.2.19
server pytriton nvidia-pytriton==0.7.0 'numpy<2'
# MLServer 1.7.1 does not start its workers with a newer uvloop.
server mlserver mlserver==1.7.1 'uvloop<0.22'
server kserve kserve==0.21.0
server ray-serve 'ray[serve]==2.60.0'
server bentoml bentoml==1.4.39
server mlflow mlflow==3.17.2 scikit-learn
