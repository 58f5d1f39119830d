"""Small classifiers of Hugging Face transformers, as their users save them, and texts for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from libraries import library, torchvision_here

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["good", "bad", "dull", "fine", "odd", "the", "film", "was", "very", "not", "plot", "cast"]
NAMES = ("praise", "blame", "shrug")
SMALL: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip


def transformers() -> Any:
    torchvision_here()
    return library("transformers")


def tokenizer(folder: Path, *, types: bool = True, **options: Any) -> Any:
    """WordPiece over ``WORDS``, in ``folder``."""
    found = transformers()
    vocabulary = {word: i for i, word in enumerate(SPECIAL + WORDS)}
    made = found.BertTokenizer(vocab=vocabulary, **options)
    if not types:
        made.model_input_names = ["input_ids", "attention_mask"]
    made.save_pretrained(folder)
    return made


def classifier(folder: Path, kind: str = "Bert", *, names=NAMES, seed: int = 0, **options: Any) -> Any:
    """A sequence classifier with its head much too large, so that it is too sure of what it says."""
    import torch

    found = transformers()
    sizes = dict(SMALL)
    if kind == "GPT2":
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2}
    if kind == "FNet":
        sizes.pop("num_attention_heads")
    options.setdefault("pad_token_id", 0)
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: k for k, name in enumerate(names)}}
    config = getattr(found, f"{kind}Config")(
        vocab_size=len(SPECIAL + WORDS), **sizes, **labels, **{"max_position_embeddings": 24, **options}
    )
    torch.manual_seed(seed)
    model = getattr(found, f"{kind}ForSequenceClassification")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(4)  # answers that differ from text to text
            if len(parameter) == len(names) and parameter.ndim == 2 and "embeddings" not in name:
                parameter.mul_(4 if kind == "GPT2" else 40)
    model.save_pretrained(folder)
    tokenizer(folder, types=kind in ("Bert", "FNet"), model_max_length=24)
    return model


def logits(folder: Path, texts: list[str], pairs: list[str] | None = None, *, at_once: int = 1) -> np.ndarray:
    """By the library alone, in batches padded to their longest text."""
    import torch

    found = transformers()
    model = found.AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval()
    words = found.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    out = []
    for start in range(0, len(texts), at_once):
        part = slice(start, start + at_once)
        given = words(
            texts[part], None if pairs is None else pairs[part], return_tensors="pt", padding=True,
            truncation=True, max_length=24,
        )  # fmt: skip
        with torch.no_grad():
            out.append(model(**given).logits.numpy())
    return np.concatenate(out)


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, int(size))) for size in rng.integers(1, 16, count)]


def drawn(z: np.ndarray, seed: int = 0) -> list[int]:
    """Labels as if the logits ``z`` were three times too large."""
    rng = np.random.default_rng(seed)
    e = np.exp((z - z.max(1, keepdims=True)) / 3)
    p = (e / e.sum(1, keepdims=True)).cumsum(1)
    return np.minimum((p < rng.random((len(z), 1))).sum(1), z.shape[1] - 1).tolist()


def table(path: Path, texts: list[str], labels: list[Any], **columns: list[Any]) -> Path:
    """A .jsonl, .csv or .parquet table, by the path's suffix."""
    whole = {"text": texts, "label": labels, **columns}
    rows = [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    elif path.suffix == ".csv":
        import csv

        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(whole))
            writer.writeheader()
            writer.writerows(rows)
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def vision(folder: Path, *, names=("ant", "bee", "cat"), **options: Any) -> Any:
    """A ViT of 16 x 16 pixels with its image processor; its head is much too large."""
    import torch

    found = transformers()
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: k for k, name in enumerate(names)}}
    torch.manual_seed(1)
    config = found.ViTConfig(image_size=16, patch_size=8, **SMALL, **labels, **options)
    model = found.ViTForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
        model.classifier.weight.mul_(60)
    model.save_pretrained(folder)
    found.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    return model


def photographs(folder: Path, count: int, seed: int = 0) -> list[Path]:
    """Pictures of several sizes and modes."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{seed}-{i}.png" for i in range(count)]
    for i, path in enumerate(paths):
        pixels = rng.integers(0, 256, (4, 4, 3), np.uint8)
        picture = Image.fromarray(pixels).resize((20 + i % 3, 18), Image.Resampling.BICUBIC)
        picture.convert(("RGB", "L", "RGBA")[i % 3]).save(path)
    return paths
