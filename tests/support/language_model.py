"""llama.cpp's own server before a language model of random weights, which this file writes and serves."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

FOLDER = Path(sys.prefix) / "llama"  # where scripts/system_tools.sh puts it
WORDS = ("good", "bad", "spam", "ham", "yes", "no", "answer", "is")
FIRST = 259  # number of the first word
_WIDTH, _LAYERS = 32, 2


def write(
    path: str,
    words: Sequence[str] = WORDS,
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    heads: int = 2,
    context: int = 256,
) -> None:
    """A llama over bytes, letters and a few words; without ``weights`` these are likelier than all else.

    Words have the numbers from ``FIRST`` on. Dimensions are those of the weights.
    """
    from gguf import GGUFWriter, TokenType

    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        *(f"\N{LOWER ONE EIGHTH BLOCK}{word}" for word in words),
        *map(chr, range(33, 127)),
    ]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    kinds += [TokenType.NORMAL] * (len(tokens) - len(kinds))
    weights = _random(len(tokens), len(words)) if weights is None else weights
    width = weights["token_embd.weight"].shape[1]
    file = GGUFWriter(path, "llama")
    file.add_context_length(context)
    file.add_embedding_length(width)
    file.add_block_count(sum(name.endswith("ffn_norm.weight") for name in weights))
    file.add_feed_forward_length(len(weights["blk.0.ffn_up.weight"]))
    file.add_head_count(heads)
    file.add_head_count_kv(heads)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_dimension_count(width // heads)
    file.add_vocab_size(len(tokens))
    file.add_tokenizer_model("llama")
    file.add_token_list(tokens)
    file.add_token_scores([0.0] * FIRST + [-float(i) for i in range(len(tokens) - FIRST)])
    file.add_token_types(kinds)
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_unk_token_id(0)
    file.add_chat_template("{% for m in messages %}{{ m['content'] }} {% endfor %}")
    for name, values in weights.items():
        file.add_tensor(name, values)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _random(tokens: int, words: int) -> dict[str, np.ndarray]:
    rng, one = np.random.default_rng(0), np.ones(_WIDTH, np.float32)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    out = normal(tokens, _WIDTH)
    out[FIRST : FIRST + words] *= 6
    found = {
        "token_embd.weight": normal(tokens, _WIDTH) * np.float32(np.sqrt(_WIDTH)),
        "output.weight": out,
        "output_norm.weight": one,
    }
    for layer in range(_LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            found[f"blk.{layer}.{name}.weight"] = normal(_WIDTH, _WIDTH)
        for name in ("attn_norm", "ffn_norm"):
            found[f"blk.{layer}.{name}.weight"] = one
        for name in ("ffn_gate", "ffn_up"):
            found[f"blk.{layer}.{name}.weight"] = normal(2 * _WIDTH, _WIDTH)
        found[f"blk.{layer}.ffn_down.weight"] = normal(_WIDTH, 2 * _WIDTH)
    return found


@contextmanager
def language_model(folder: Path) -> Iterator[str]:
    """The address of llama.cpp's server before the model ``tiny.gguf`` there, by default the small one.

    Skips where it is not installed.
    """
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

    if not Path(path).exists():
        write(path)
    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = path, ["127.0.0.1"], port
    params.n_ctx, params.cpuparams.n_threads, params.warmup = 256, 1, False
    server = xllamacpp.Server(params)
    while server is not None:
        time.sleep(60)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
