#!/usr/bin/env bash
# river 0.26.1: CrossEntropy of a prediction that lacks the true class is 0, the loss of one that was sure of it: on a
# stream whose every label is new, a classifier has an accuracy of 0 and a cross entropy of 0, so the first sample of
# each class costs nothing. The same class with a probability of 0 costs 34.5. And LogLoss takes labels 1 and 2 for 1
# and not 1: a prediction of .9 for the true class 2 costs 2.30, as one of .1 does.
# Guess before: what is missing has a probability of 0, and costs 34.5; of two labels the loss is of the true one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check river==0.26.1
"$folder/venv/bin/python" -W ignore - <<'PY'
from importlib.metadata import version

from river import metrics, naive_bayes


def one(metric, label, probs):
    metric.update(label, probs)
    return metric.get()


def along(labels):
    """Cross entropy and accuracy of what is foreseen of each label before it is learned, and the share without it."""
    model, loss, right, lacks = naive_bayes.GaussianNB(), metrics.CrossEntropy(), metrics.Accuracy(), 0
    for k, label in enumerate(labels):
        x = {"x": float(k)}
        probs = model.predict_proba_one(x)
        if probs:
            loss.update(label, probs)
            right.update(label, model.predict_one(x))
            lacks += label not in probs
        model.learn_one(x, label)
    return loss.get(), right.get(), lacks


lacking = one(metrics.CrossEntropy(), "c", {"a": 0.5, "b": 0.5})
impossible = one(metrics.CrossEntropy(), "c", {"a": 0.5, "b": 0.5, "c": 0.0})
new = along([f"class {k}" for k in range(50)])
second = one(metrics.LogLoss(), 2, {1: 0.1, 2: 0.9})
first = one(metrics.LogLoss(), 1, {0: 0.1, 1: 0.9})
print(f"river {version('river')}: cross entropy of a class that is missing {lacking}, of one at 0 {impossible:.1f}; of a "
      f"stream of new labels {new[0]}, accuracy {new[1]}, without the class {new[2]}; log loss of .9 for the true class of "
      f"0 and 1 {first:.3f}, of 1 and 2 {second:.3f}")
assert lacking == 0 and impossible > 30 and new == (0, 0, 49)
assert abs(first - 0.10536) < 1e-4 and abs(second - 2.30259) < 1e-4
PY
