"""llama.cpp's own server before a language model of random weights, which this file writes and serves."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

FOLDER = Path(sys.prefix) / "llama"  # where scripts/system_tools.sh puts it
WORDS = ("good", "bad", "spam", "ham", "yes", "no", "answer", "is")
_WIDTH, _LAYERS = 32, 2


def write(path: str) -> None:
    """A llama over bytes, letters and a few words, which are likelier than all else."""
    from gguf import GGUFWriter, TokenType

    words = [f"\N{LOWER ONE EIGHTH BLOCK}{word}" for word in WORDS]
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        *words,
        *map(chr, range(33, 127)),
    ]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    kinds += [TokenType.NORMAL] * (len(tokens) - len(kinds))
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    file = GGUFWriter(path, "llama")
    file.add_context_length(256)
    file.add_embedding_length(_WIDTH)
    file.add_block_count(_LAYERS)
    file.add_feed_forward_length(2 * _WIDTH)
    file.add_head_count(2)
    file.add_head_count_kv(2)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_dimension_count(_WIDTH // 2)
    file.add_vocab_size(len(tokens))
    file.add_tokenizer_model("llama")
    file.add_token_list(tokens)
    file.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)])
    file.add_token_types(kinds)
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_unk_token_id(0)
    file.add_chat_template("{% for m in messages %}{{ m['content'] }} {% endfor %}")
    out = normal(len(tokens), _WIDTH)
    out[259 : 259 + len(words)] *= 6
    file.add_tensor("token_embd.weight", normal(len(tokens), _WIDTH) * np.float32(np.sqrt(_WIDTH)))
    file.add_tensor("output.weight", out)
    file.add_tensor("output_norm.weight", np.ones(_WIDTH, np.float32))
    for layer in range(_LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            file.add_tensor(f"blk.{layer}.{name}.weight", normal(_WIDTH, _WIDTH))
        for name in ("attn_norm", "ffn_norm"):
            file.add_tensor(f"blk.{layer}.{name}.weight", np.ones(_WIDTH, np.float32))
        for name in ("ffn_gate", "ffn_up"):
            file.add_tensor(f"blk.{layer}.{name}.weight", normal(2 * _WIDTH, _WIDTH))
        file.add_tensor(f"blk.{layer}.ffn_down.weight", normal(_WIDTH, 2 * _WIDTH))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


@contextmanager
def language_model(folder: Path) -> Iterator[str]:
    """The address of llama.cpp's server before the small model; skips where it is not installed."""
    from live_server import until  # not where the server itself runs this file
    from processes import free_port, started

    if not FOLDER.is_dir():
        pytest.skip("llama.cpp is not installed: scripts/system_tools.sh")
    port = free_port()
    command = [sys.executable, __file__, str(folder / "tiny.gguf"), str(port)]
    with started(command, cwd=folder) as process:
        url = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            assert process.poll() is None, "the server ended"
            try:
                return httpx.get(f"{url}/health", timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        until(ready, seconds=60)
        yield url


def _serve(path: str, port: int) -> None:
    sys.path.append(str(FOLDER))
    import xllamacpp

    write(path)
    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = path, ["127.0.0.1"], port
    params.n_ctx, params.cpuparams.n_threads, params.warmup = 256, 1, False
    server = xllamacpp.Server(params)
    while server is not None:
        time.sleep(60)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
