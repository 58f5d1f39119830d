#!/usr/bin/env bash
# mistral.rs 0.9.5: the log-probabilities of a chat answer are those after its temperature: at .5 the odds of the two
# likeliest tokens are squared, at 2 their root, and at 0 they are those of 1. llama.cpp (xllamacpp 2026.10.11549)
# lists the same ones at every temperature. In each entry of top_logprobs "token" is a number and "bytes" the text.
# Guess before: both give the model's own distribution, as the field "logprobs" of others does; "bytes" a list of bytes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mistralrs==0.9.5 xllamacpp==2026.10.11549 \
  gguf==0.19.0 numpy==2.4.6
cat >"$folder/model.py" <<'PY'
"""A llama of random weights over bytes and a few words, as a GGUF file."""
import sys

import numpy as np
from gguf import GGUFWriter, TokenType

words = ["\u2581good", "\u2581bad", "\u2581spam", "\u2581ham", "\u2581yes", "\u2581no", "\u2581"]
tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *map(chr, range(33, 127))]
kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
kinds += [TokenType.NORMAL] * (len(tokens) - len(kinds))
rng, width = np.random.default_rng(0), 32


def normal(*shape):
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


file = GGUFWriter(sys.argv[1], "llama")
file.add_context_length(256)
file.add_embedding_length(width)
file.add_block_count(1)
file.add_feed_forward_length(64)
file.add_head_count(2)
file.add_head_count_kv(2)
file.add_layer_norm_rms_eps(1e-5)
file.add_rope_dimension_count(16)
file.add_vocab_size(len(tokens))
file.add_tokenizer_model("llama")
file.add_token_list(tokens)
file.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)])
file.add_token_types(kinds)
file.add_bos_token_id(1)
file.add_eos_token_id(2)
file.add_unk_token_id(0)
file.add_chat_template("{% for m in messages %}{{ m['content'] }} {% endfor %}")
out = normal(len(tokens), width)
out[259 : 259 + len(words)] *= 5
shapes = {"attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width), "attn_output": (width, width)}
shapes |= {"ffn_gate": (64, width), "ffn_up": (64, width), "ffn_down": (width, 64)}
file.add_tensor("token_embd.weight", normal(len(tokens), width) * np.float32(np.sqrt(width)))
file.add_tensor("output.weight", out)
for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
    file.add_tensor(f"{name}.weight", np.ones(width, np.float32))
for name, shape in shapes.items():
    file.add_tensor(f"blk.0.{name}.weight", normal(*shape))
file.write_header_to_file()
file.write_kv_data_to_file()
file.write_tensors_to_file()
file.close()
PY
"$folder/venv/bin/python" "$folder/model.py" "$folder/tiny.gguf"
cat >"$folder/ask.py" <<'PY'
import json
import sys
import urllib.request

folder, server = sys.argv[1:]
question = [{"role": "user", "content": "good"}]
if server == "mistralrs":
    import mistralrs

    which = mistralrs.Which.GGUF(quantized_model_id=folder, quantized_filename="tiny.gguf")
    model = mistralrs.Runner(which=which)

    def top(temperature):
        asked = mistralrs.ChatCompletionRequest(
            model="x", messages=question, max_tokens=1, logprobs=True, top_logprobs=2, temperature=temperature
        )
        found = model.send_chat_completion_request(asked).choices[0].logprobs.content[0].top_logprobs
        assert isinstance(found[0].token, int) and isinstance(found[0].bytes, str)
        return [one.logprob for one in found]
else:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.warmup = f"{folder}/tiny.gguf", 256, False
    model = xllamacpp.Server(params)

    def top(temperature):
        body = {"messages": question, "max_tokens": 1, "logprobs": True, "top_logprobs": 2}
        body |= {"temperature": temperature, "cache_prompt": False}
        request = urllib.request.Request(
            f"{model.listening_address}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        answer = json.load(urllib.request.urlopen(request))
        return [one["logprob"] for one in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]]


odds = {t: (lambda pair: pair[0] - pair[1])(top(t)) for t in (1.0, 0.5, 2.0, 0.0)}
print(server, "log-odds of the two likeliest by temperature:", {t: round(o, 3) for t, o in odds.items()})
expected = {0.5: 2, 2.0: 0.5, 0.0: 1} if server == "mistralrs" else {0.5: 1, 2.0: 1, 0.0: 1}
for t, times in expected.items():
    assert abs(odds[t] - times * odds[1.0]) < 1e-3 * abs(odds[1.0]), (t, odds)
PY
for server in mistralrs llama.cpp; do
  "$folder/venv/bin/python" "$folder/ask.py" "$folder" "$server" 2>/dev/null | grep "log-odds"
done
