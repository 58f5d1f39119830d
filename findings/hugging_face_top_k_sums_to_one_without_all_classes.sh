#!/usr/bin/env bash
# transformers 5.23.0: pipeline(top_k=2) gives lists that sum to exactly 1, or to more, and leave out classes of a
# probability above 0, such as 4e-10: the softmax is of float32, which rounds. A sum of 1 proves no rest of 0.
# Guess before: what sums to exactly 1 has left nothing out.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 torch==2.13.0 numpy
"$folder/venv/bin/python" -W ignore - <<'PY'
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline

words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(50)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w1")
torch.manual_seed(0)
size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
model = BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=4, initializer_range=1.0, **size)).eval()
model.classifier.weight.data *= 3  # as sure as a fine-tuned one
rng = np.random.default_rng(0)
texts = [" ".join(f"w{k}" for k in rng.integers(0, 50, 5)) for _ in range(300)]
whole, top = (
    pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=k)(texts, batch_size=1) for k in (None, 2)
)
sums = np.array([sum(one["score"] for one in row) for row in top])
rest = np.array([sum(one["score"] for one in row[2:]) for row in whole])
ones = sums == 1
print(
    f"transformers {transformers.__version__}: of {len(top)} lists of 2 of 4 classes {ones.sum()} sum to exactly 1, "
    f"and leave out up to {rest[ones].max():.1e}; the largest sum is {sums.max():.10f}"
)
assert ones.any() and (rest[ones] > 0).all() and sums.max() > 1
PY
