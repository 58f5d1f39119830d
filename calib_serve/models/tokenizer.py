"""Texts as token ids, by the tokenizer of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calib_serve.core.errors import ModelError
from calib_serve.models.hugging_face_folder import Folder, local, transformers
from calib_serve.models.labelled_texts import LabelledTexts

PADDING = -1
_TYPES = "token_type_ids"
_MADE = ("input_ids", "attention_mask", _TYPES)


@dataclass(frozen=True)
class Words:
    """The tokenizer of a folder; ``limit``: the most tokens of a text, None where there is no limit."""

    tokenizer: Any
    limit: int | None
    planes: int

    def encode(self, given: LabelledTexts) -> tuple[list[NDArray[np.int32]], int]:
        """Each text as (planes, its length), and how many had to be truncated to the limit."""
        rows: list[NDArray[np.int32]] = []
        cut = 0
        for texts, pairs in _parts(given):
            found = self._tokens(texts, pairs)
            long = [i for i, ids in enumerate(found) if self.limit is not None and ids.shape[1] > self.limit]
            if long:
                cut += len(long)
                again = self._tokens(
                    [texts[i] for i in long], [pairs[i] for i in long] if pairs else (), self.limit
                )
                for i, ids in zip(long, again, strict=True):
                    found[i] = ids
            rows += found
        return rows, cut

    def padded(self, rows: Sequence[NDArray[np.int32]], length: int) -> NDArray[np.int32]:
        """Pad rows (planes, their lengths) to one array (n, planes, length), where the tokenizer pads."""
        out = np.full((len(rows), self.planes, length), PADDING, np.int32)
        left = self.tokenizer.padding_side == "left"
        for i, row in enumerate(rows):
            size = row.shape[1]
            out[i, :, slice(length - size, None) if left else slice(size)] = row
        return out

    def made_up(self) -> NDArray[np.int32]:
        """A few texts of random words and several lengths, (8, planes, length)."""
        rng = np.random.default_rng(0)
        special = set(self.tokenizer.all_special_ids)
        ids = [i for i in range(len(self.tokenizer)) if i not in special]
        drawn = [rng.choice(ids, size) for size in (1, 8, 3, 5, 2, 4, 1, 3)]
        texts = [" ".join(self.tokenizer.decode([int(i)]).strip() or "a" for i in row) for row in drawn]
        rows = self._tokens(texts, (), self.limit)
        return self.padded(rows, max(row.shape[1] for row in rows))

    def _tokens(
        self, texts: Sequence[str], pairs: Sequence[str], limit: int | None = None
    ) -> list[NDArray[np.int32]]:
        how: dict[str, Any] = {"truncation": True, "max_length": limit} if limit else {"truncation": False}
        made = self.tokenizer(list(texts), list(pairs) or None, padding=False, verbose=False, **how)
        names = (_MADE[0], _TYPES)[: self.planes]
        return [np.array([made[name][i] for name in names], np.int32) for i in range(len(texts))]


def read_words(folder: Folder) -> Words:
    """The folder's tokenizer; ModelError where there is none, or it is not the model's."""
    tokenizer = local("the tokenizer", folder.path, transformers().AutoTokenizer.from_pretrained)
    # Without its files the library makes one up, of special tokens alone.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ModelError(
            f"the tokenizer of {folder.path} knows no words: its files are missing; write them there with "
            "tokenizer.save_pretrained"
        )
    known = getattr(folder.config, "vocab_size", None)
    largest = max(tokenizer.get_vocab().values())
    if known is not None and largest >= known:
        raise ModelError(
            f"the tokenizer of {folder.path} makes ids up to {largest}, and the model has {known} words: it "
            "is not this model's"
        )
    if others := set(tokenizer.model_input_names) - set(_MADE):
        raise ModelError(
            f"the model takes {', '.join(sorted(others))} beside its texts, which texts do not say"
        )
    limits = [tokenizer.model_max_length, *_positions(folder)]
    known_limits = [int(limit) for limit in limits if limit < 10**6]  # no limit is some 1e30
    planes = 1 + (_TYPES in tokenizer.model_input_names)
    return Words(tokenizer, min(known_limits, default=None), planes)


def _positions(folder: Folder) -> Iterator[int]:
    """Yield how many tokens the model has positions for; looked for in its layers, without weights."""
    said = getattr(folder.config, "max_position_embeddings", None)
    if isinstance(said, int):
        yield said
    with torch.device("meta"):
        empty = transformers().AutoModelForSequenceClassification.from_config(folder.config)
    for name, layer in empty.named_modules():
        if name.endswith("position_embeddings") and isinstance(layer, torch.nn.Embedding):
            # RoBERTa and its like count from the padding's id on.
            yield layer.num_embeddings - (0 if layer.padding_idx is None else layer.padding_idx + 1)


def _parts(given: LabelledTexts) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    for start in range(0, len(given), 1000):
        rows = slice(start, start + 1000)
        yield given.texts[rows], given.pairs[rows]
