#!/usr/bin/env bash
# llama.cpp's server (xllamacpp 2026.10.11549): /v1/completions, asked for logprobs, answers with a list "content" of
# entries, as chat completions have, and not with "tokens", "token_logprobs" and "top_logprobs", as the interface that
# it is named after says: the public client reads the answer without an error, and finds None in all three.
# Guess before: OpenAI's three lists, as the Python server around the same library gives them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xllamacpp==2026.10.11549 openai==3.57.0 \
  gguf==0.19.0 numpy==2.4.6
here=$(cd "$(dirname "$0")" && pwd)
sed -n '/^cat >"$folder\/model.py"/,/^PY$/p' "$here/mistralrs_logprobs_follow_the_temperature.sh" | sed '1d;$d' \
  >"$folder/model.py"
"$folder/venv/bin/python" "$folder/model.py" "$folder/tiny.gguf"
"$folder/venv/bin/python" - "$folder/tiny.gguf" 2>/dev/null <<'PY'
import sys

import openai
import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.warmup = sys.argv[1], 256, False
server = xllamacpp.Server(params)
client = openai.OpenAI(base_url=f"{server.listening_address}/v1", api_key="none")
found = client.completions.create(model="x", prompt="good", max_tokens=1, logprobs=2).choices[0].logprobs
print("tokens", found.tokens, "top_logprobs", found.top_logprobs, "content", [e["token"] for e in found.content])
assert found.tokens is None and found.token_logprobs is None and found.top_logprobs is None
assert len(found.content[0]["top_logprobs"]) == 2
PY
