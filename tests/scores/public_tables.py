"""A hundred tables of scores as public programs and data sets write them, and what is right of each.

No public data is kept here. A table is rebuilt by a seeded generator that has its header, its kind of
numbers, its roundings and its labels; ``of`` names the program or the kind of file, and where it was seen.
What rests on knowledge of a program's format alone is marked "(known)".
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import NDArray

N = 600
LOST = np.array([5, 50, 77, 123, 300, 301, 444, 599])
"""Rows whose score or label a table lacks, where it has gaps."""


@dataclass(frozen=True)
class Right:
    """What a table holds, by numpy alone: fractions, the number of rows and classes, and each row's class."""

    accuracy: float
    ece: float
    rows: int
    classes: int
    called: tuple[str, ...] = ()
    """The name of each row's class; empty where the table has no names."""
    groups: int | None = None


@dataclass(frozen=True)
class Samples:
    """Probabilities (n, K) as rounded in the file, class ids (n,), or 0 and 1 (n, L), and what is beside."""

    rng: Generator
    p: NDArray[np.float64]
    y: NDArray[np.intp]
    names: tuple[str, ...]
    id: NDArray[np.intp]
    weights: NDArray[np.float64] | None = None
    gaps: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(N, bool))

    @property
    def p1(self) -> NDArray[np.float64]:
        """P(class 1) (n,)."""
        return self.p[:, 1]

    @property
    def text(self) -> NDArray[Any]:
        """The name of each label (n,)."""
        return np.array(self.names, object)[self.y]

    @property
    def top(self) -> NDArray[Any]:
        """The name of each prediction (n,)."""
        return np.array(self.names, object)[self.p.argmax(axis=1)]

    @property
    def logits(self) -> NDArray[np.float64]:
        """Logarithms of the probabilities (n, K), shifted by row: a softmax alone makes sense of them."""
        return np.log(self.p) + self.rng.normal(2, 1, size=(len(self.p), 1))

    @property
    def log_odds(self) -> NDArray[np.float64]:
        """The logit of class 1 (n,)."""
        return np.log(self.p[:, 1] / self.p[:, 0])

    @property
    def margins(self) -> NDArray[np.float64]:
        """One sigmoid a class (n, K), which do not sum to 1."""
        return 1 / (1 + np.exp(-1.5 - np.log(self.p)))

    def columns(self, form: str = "{}", values: Any = None, order: Sequence[int] = ()) -> dict[str, Any]:
        """One column a class."""
        values = self.p if values is None else values
        return {form.format(self.names[k]): values[:, k] for k in order or range(len(self.names))}

    def ids(self, form: str) -> list[str]:
        """A text for each row's id."""
        return [form.format(i) for i in self.id]

    def number(self, low: float, high: float, digits: int = 1) -> NDArray[np.float64]:
        """A feature (n,)."""
        return self.rng.uniform(low, high, len(self.p)).round(digits)

    def one_of(self, *values: Any) -> NDArray[Any]:
        """A feature of few values (n,)."""
        return np.array(values, object)[self.rng.integers(0, len(values), len(self.p))]

    def gap(self, values: Any, sentinel: Any) -> NDArray[Any]:
        """The values, and the sentinel where there is none."""
        mask = self.gaps if np.ndim(values) == 1 else self.gaps[:, None]
        return np.where(mask, sentinel, values)

    def right(self, *, groups: int | None) -> Right:
        """What a reader must find."""
        kept = ~self.gaps
        weights = None if self.weights is None else self.weights[kept]
        p, y = self.p[kept], self.y[kept]
        p = p if y.ndim == 2 else p / p.sum(axis=1, keepdims=True)
        plain = y.ndim == 2 or (all(name.isdecimal() for name in self.names) and len(self.names) == 2)
        called = () if plain else tuple(self.text[kept])
        return Right(*pencil(p, y, weights), len(p), p.shape[1], called, groups)


def pencil(
    p: NDArray[np.float64], y: NDArray[np.intp], weights: NDArray[np.float64] | None = None
) -> tuple[float, float]:
    """Accuracy, and ECE of 15 equal bins: of the top label, of class 1 of two, or of all labels."""
    w = np.ones(len(p)) if weights is None else weights
    if y.ndim == 2:
        true, confidence, event = (p > 0.5) == y, p.ravel(), y.ravel()
        accuracy, w = float(np.average(true.mean(axis=1), weights=w)), np.repeat(w, y.shape[1])
    else:
        accuracy = float(np.average(p.argmax(axis=1) == y, weights=w))
        binary = p.shape[1] == 2
        confidence = p[:, 1] if binary else p.max(axis=1)
        event = y if binary else p.argmax(axis=1) == y
    bins = np.clip(np.ceil(confidence * 15 - 1e-9).astype(int) - 1, 0, 14)
    gaps = np.bincount(bins, w * (event - confidence), 15)
    return accuracy, float(np.abs(gaps).sum() / w.sum())


def _softmax(z: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def several(*names: str, digits: int | None = None, gaps: bool = False, rare: bool = False) -> Make:
    """Calibrated probabilities of some classes; ``rare``: the last of two comes seldom."""

    def make(rng: Generator) -> Samples:
        z = 2.2 * rng.normal(size=(N, len(names)))
        z[:, -1] -= 2.5 * rare
        p = np.clip(_softmax(z), 1e-6, 1)
        y = (p.cumsum(axis=1)[:, :-1] < rng.random((N, 1))).sum(axis=1)
        y[: len(names)] = np.arange(len(names))  # each class has a label
        if digits is not None:
            p = p.round(digits)
            p = np.stack([1 - p[:, 1], p[:, 1]], axis=1) if len(names) == 2 else p
        lost = np.isin(np.arange(N), LOST) if gaps else np.zeros(N, bool)
        return Samples(rng, p, y, names, np.arange(N), gaps=lost)

    return make


def binary(*names: str, digits: int | None = None, gaps: bool = False, rare: bool = False) -> Make:
    """Calibrated probabilities of two classes, by default 0 and 1."""
    return several(*(names or ("0", "1")), digits=digits, gaps=gaps, rare=rare)


def grouped(make: Make, *, each: int) -> Make:
    """The same, of as few ids as have ``each`` rows; labels of an id are one, its scores vary."""

    def again(rng: Generator) -> Samples:
        s = make(rng)
        first = np.arange(N) // each
        p = _softmax(np.log(s.p[first]) + 0.3 * rng.normal(size=s.p.shape))
        return replace(s, p=p, y=s.y[first], id=first)

    return again


def labels(*names: str, digits: int | None = 4, gaps: bool = False) -> Make:
    """Probabilities of labels of which any number is true."""

    def make(rng: Generator) -> Samples:
        p = (1 / (1 + np.exp(1 - 2 * rng.normal(size=(N, len(names)))))).round(digits)
        lost = np.isin(np.arange(N), LOST) if gaps else np.zeros(N, bool)
        y = (rng.random(p.shape) < p).astype(np.intp)
        return Samples(rng, p, y, names, np.arange(N), gaps=lost)

    return make


def weighted(make: Make) -> Make:
    """The same, with weights."""

    def again(rng: Generator) -> Samples:
        s = make(rng)
        return replace(s, weights=rng.gamma(0.7, 1, N).round(3) + 0.01)

    return again


def of_odds(*names: str) -> Make:
    """The inverses of odds of two decimals, which sum to more than 1: the bookmaker's margin."""

    def make(rng: Generator) -> Samples:
        s = several(*names)(rng)
        return replace(s, p=1 / np.maximum(1 / (1.06 * np.clip(s.p, 0.02, 0.9)), 1.01).round(2))

    return make


def too_sure(make: Make) -> Make:
    """The same with logits four times as large, some probabilities of which are 1."""

    def again(rng: Generator) -> Samples:
        s = make(rng)
        return replace(s, p=_softmax(4 * np.log(s.p)))

    return again


def counted(make: Make, trials: int) -> Make:
    """Shares of so many votes."""

    def again(rng: Generator) -> Samples:
        s = make(rng)
        return replace(s, p=rng.multinomial(trials, s.p / s.p.sum(axis=1, keepdims=True)) / trials)

    return again


Make = Callable[[Generator], Samples]
Holds = Callable[[Samples], "Mapping[str, Any] | list[str]"]


@dataclass(frozen=True)
class Table:
    """A table after a public one.

    ``complete``: the file itself says all that a reader must know, so reading it without options succeeds.
    ``options``: keywords of ``Scores.read`` that settle it, where {folder} is the file's; None: none can.
    ``file``: ending, and before it how it is written: R, R2 (write.csv2), indexed, lines, bare of names.
    """

    name: str
    of: str
    samples: Make
    holds: Holds
    file: str = "csv"
    complete: bool = False
    options: Mapping[str, Any] | None = None
    groups: int | None = None

    def build(self, rng: Generator, folder: Path) -> tuple[Path, list[str], Right]:
        """Write the table: its file, the names of its columns or arrays, and what is right of it."""
        s = self.samples(rng)
        held = self.holds(s)
        np.save(folder / "truth.npy", s.y if s.y.ndim == 2 else s.text.astype(str))
        path, names = _write(held, self.file, folder)
        return path, names, s.right(groups=self.groups)

    def keywords(self, folder: Path) -> dict[str, Any]:
        """The options for this folder."""
        given = (self.options or {}).items()
        return {k: v.format(folder=folder) if isinstance(v, str) else v for k, v in given}


def _write(held: Any, file: str, folder: Path) -> tuple[Path, list[str]]:
    how, _, ending = file.rpartition(" ")  # such as "R2 csv", as R's write.csv2
    path = folder / f"scores.{ending}"
    if isinstance(held, list):  # of text
        path.write_text("\n".join(held) + "\n", "utf-8")
        return path, [] if how == "bare" else re.split("[ ,\t]", held[0])
    if ending == "npz":
        np.savez(path, **held)
    elif ending == "jsonl":
        rows = (dict(zip(held, row, strict=True)) for row in zip(*held.values(), strict=True))
        lines = (json.dumps(row, default=lambda value: value.tolist()) for row in rows)
        path.write_text("\n".join(lines) + "\n", "utf-8")
    else:
        frame = pd.DataFrame({name: list(values) for name, values in held.items()})
        if ending == "parquet":
            frame.to_parquet(path)
        else:
            sep, decimal = {"tsv": ("\t", "."), "R2 csv": (";", ",")}.get(file, (",", "."))
            quote = csv.QUOTE_NONNUMERIC if how.startswith("R") else csv.QUOTE_MINIMAL
            named = {"index_label": ""} if how.startswith("R") else {}
            frame.to_csv(path, sep=sep, decimal=decimal, index=bool(how), quoting=quote, na_rep="NA", **named)
    return path, [] if how == "bare" else list(held)


def _phred(p: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.minimum(-10 * np.log10(p / p.max(axis=1, keepdims=True)), 99).round().astype(int)


# A table of tables: one entry says header, numbers and options at a glance.
# fmt: off
IRIS = ("setosa", "versicolor", "virginica")
SKIN = ("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC")
LIGHT = tuple(map(str, (6, 15, 16, 42, 52, 53, 62, 64, 65, 67, 88, 90, 92, 95, 99)))
EEG = ("Seizure", "LPD", "GPD", "LRDA", "GRDA", "Other")
VOTES = [f"{name.lower()}_vote" for name in EEG]
TEN = tuple(map(str, range(12)))
ALPHABETICAL = sorted(range(12), key=str)

LIBRARIES = [
    Table("frame of predict_proba", "scikit-learn 1.9, DataFrame(predict_proba)", several("0", "1", "2"),
          lambda s: {**s.columns(), "target": s.y}, "indexed csv", True, {}),
    Table("XGBoost's binary:logitraw", "XGBoost 3 predict_proba: margins z as 1 - z and z, which sum to 1",
          binary(rare=True), lambda s: {"0": 1 - s.log_odds, "1": s.log_odds, "y_true": s.y},
          options={"columns": ["1"], "outputs": "logit"}),
    Table("CatBoost, several types", "CatBoost calc, catboost/docs output-data_model-values", binary(),
          lambda s: {"SampleId": s.id, "RawFormulaVal": s.log_odds, "Probability": s.p1,
                     "Class": s.p.argmax(axis=1), "Label": s.y}, "tsv",
          options={"columns": ["Probability"], "outputs": "probability", "labels": "Label"}),
    Table("CatBoost, several classes", "CatBoost calc, catboost/docs output-data_model-values",
          several("0", "1", "2"),
          lambda s: {"SampleId": s.ids("s{}"), **s.columns("Probability:Class={}"), "Label": s.y}, "tsv",
          True, {}),
    Table("H2O, two classes", "H2O-3 h2o.predict; uses on GitHub of predict,p0,p1", binary(),
          lambda s: {"predict": s.p.argmax(axis=1), "p0": s.p[:, 0], "p1": s.p1, "CAPSULE": s.y},
          options={"columns": ["p0", "p1"], "labels": "CAPSULE"}),
    Table("H2O, calibrated", "H2O-3 calibrate_model=TRUE; cal_p0 and cal_p1", binary(),
          lambda s: {"predict": s.p.argmax(axis=1), "p0": s.p[:, 0], "p1": s.p1,
                     "cal_p0": 1 - s.p1**1.5, "cal_p1": s.p1**1.5, "y": s.y},
          options={"columns": ["p0", "p1"]}),
    Table("H2O, several classes", "H2O-3 h2o.predict, with the truth", several(*IRIS),
          lambda s: {"predict": s.top, **s.columns(), "class": s.text}, complete=True, options={}),
    Table("AutoGluon", "AutoGluon predict_proba.to_csv, Adult (known)", binary(" <=50K", " >50K"),
          lambda s: {**s.columns(), "class": s.text}, "indexed csv", True, {}),
    Table("AutoML benchmark", "openml/automlbenchmark predictions.csv, classes by alphabet (issue 212)",
          several(*TEN), lambda s: {**s.columns(order=ALPHABETICAL), "predictions": s.p.argmax(axis=1),
                                    "truth": s.y}, options={"columns": [str(k) for k in ALPHABETICAL]}),
    Table("mljar, out of folds", "mljar-supervised predictions_out_of_folds.csv, as read by tools on GitHub",
          binary("no", "yes"), lambda s: {"prediction_0_for_no_1_for_yes": s.p1, "target": s.y},
          options={"columns": ["prediction_*"], "outputs": "probability", "class_names": ["no", "yes"]}),
    Table("mljar, predict_all", "mljar-supervised predict_all: label is the prediction", several(*IRIS),
          lambda s: {**s.columns("prediction_{}"), "label": s.top, "species": s.text},
          options={"columns": ["prediction_*"], "labels": "species"}),
    Table("PyCaret", "PyCaret predict_model: score of the predicted class", binary("CH", "MM"),
          lambda s: {"WeekofPurchase": s.number(227, 278, 0), "PriceCH": s.number(1.7, 2.1, 2),
                     "Purchase": s.text, "prediction_label": s.top,
                     "prediction_score": s.p.max(axis=1).round(4)}),
    Table("PyCaret, raw scores", "PyCaret predict_model(raw_score=True)", binary(digits=4),
          lambda s: {"age": s.number(18, 80, 0), "default": s.y, "prediction_label": s.p.argmax(axis=1),
                     **s.columns("prediction_score_{}")},
          options={"columns": ["prediction_score_*"], "labels": "default"}),
    Table("DataRobot", "DataRobot batch prediction, datarobot/airflow-provider tests", binary("0.0", "1.0"),
          lambda s: {**s.columns("readmitted_{}_PREDICTION", order=[1, 0]),
                     "readmitted_PREDICTION": s.p.argmax(axis=1).astype(float), "THRESHOLD": [0.5] * N,
                     "POSITIVE_CLASS": ["1.0"] * N, "prediction_status": ["OK"] * N, "readmitted": s.text},
          options={"columns": ["readmitted_0.0_PREDICTION", "readmitted_1.0_PREDICTION"],
                   "labels": "readmitted", "class_names": ["0.0", "1.0"]}),
    Table("Azure ML Studio, several classes", "Score Model; readers of it on GitHub", several(*IRIS),
          lambda s: {**s.columns('Scored Probabilities for Class "{}"'), "Scored Labels": s.top,
                     "Class": s.text},
          options={"columns": ["Scored Probabilities*"], "labels": "Class", "class_names": list(IRIS)}),
    Table("SAS", "SAS Enterprise Miner score code, P_BAD1 before P_BAD0", binary(rare=True),
          lambda s: {**s.columns("P_BAD{}", order=[1, 0]), "I_BAD": s.p.argmax(axis=1), "BAD": s.y},
          options={"columns": ["P_BAD0", "P_BAD1"], "labels": "BAD"}),
    Table("RapidMiner", "RapidMiner Apply Model; headers on GitHub", binary("no", "yes", digits=3),
          lambda s: {"prediction(label)": s.top, **s.columns("confidence({})", order=[1, 0]),
                     "label": s.text}, complete=True, options={}),
    Table("RapidMiner, numbers", "RapidMiner's confidences, as it met classes",
          binary(digits=3),
          lambda s: {**s.columns("confidence({})", order=[1, 0]), "label": s.y},
          options={"columns": ["confidence(0)", "confidence(1)"]}),
    Table("KNIME", "KNIME predictor nodes (known)", binary("no", "yes"),
          lambda s: {**s.columns("P (class={})", order=[1, 0]), "Prediction (class)": s.top, "class": s.text},
          complete=True, options={}),
    Table("Weka", "Weka -p with CSV: the probability of the predicted class", binary("a", "b", digits=3),
          lambda s: {"inst#": s.id + 1, "actual": [f"{k + 1}:{n}" for k, n in zip(s.y, s.text, strict=True)],
                     "predicted": [f"{1 + (n == 'b')}:{n}" for n in s.top],
                     "error": np.where(s.top == s.text, "", "+"), "prediction": s.p.max(axis=1)}),
    Table("Weka, distributions", "Weka -distribution: more cells a row than names",
          binary("a", "b", digits=3),
          lambda s: ["inst#,actual,predicted,error,distribution",
                     *(f"{i + 1},{n},{t},,{'*' * (n == 'a')}{p[0]:.3f},{'*' * (n == 'b')}{p[1]:.3f}"
                       for i, (n, t, p) in enumerate(zip(s.text, s.top, s.p, strict=True)))], "lines csv"),
    Table("OpenML", "OpenML predictions, 10 times 10 folds (openml.org, mlr3oml)",
          grouped(several(*IRIS), each=10),
          lambda s: {"repeat": np.arange(N) % 10, "fold": s.one_of(*range(10)), "row_id": s.id,
                     **s.columns("confidence.{}"), "prediction": s.top, "correct": s.text},
          options={"columns": ["confidence.*"], "labels": "correct", "groups": "row_id"}, groups=N // 10),
    Table("caret", "R caret savePredictions, repeated cross-validation", grouped(binary("no", "yes"), each=5),
          lambda s: {"pred": s.top, "obs": s.text, **s.columns(), "rowIndex": s.id + 1, "mtry": [2] * N,
                     "Resample": s.one_of("Fold1.Rep1", "Fold2.Rep1")}, "R csv",
          options={"columns": ["no", "yes"], "labels": "obs", "groups": "rowIndex"}, groups=N // 5),
    Table("tidymodels", "R tune collect_predictions; uses on GitHub", binary("no", "yes"),
          lambda s: {**s.columns(".pred_{}"), "id": s.one_of("Fold01", "Fold02", "Fold03"), ".row": s.id + 1,
                     ".pred_class": s.top, "churn": s.text, ".config": ["Preprocessor1_Model1"] * N},
          options={"columns": [".pred_no", ".pred_yes"], "labels": "churn"}),
    Table("two classes of yardstick", "R yardstick two_class_example", binary("Class1", "Class2"),
          lambda s: {"truth": s.text, **s.columns(), "predicted": s.top}, "csv", True, {}),
    Table("four classes of yardstick", "R yardstick hpc_cv: classes called F, M and L",
          several("VF", "F", "M", "L"),
          lambda s: {"obs": s.text, "pred": s.top, **s.columns(), "Resample": s.one_of("Fold01", "Fold02")},
          options={"labels": "obs", "columns": ["VF", "F", "M", "L"]}),
    Table("the first level", "R yardstick, event_level first: P(no) alone (known)", binary("yes", "no"),
          lambda s: {"prob_no": s.p1, "label": s.text},
          options={"columns": ["prob_no"], "class_names": ["yes", "no"]}),
    Table("mlr3", "R mlr3 as.data.table(prediction)", binary("neg", "pos"),
          lambda s: {"row_ids": s.id + 1, "truth": s.text, "response": s.top,
                     **s.columns("prob.{}", order=[1, 0])}, options={"columns": ["prob.neg", "prob.pos"]}),
    Table("randomForest, votes as counts", "R randomForest norm.votes=FALSE; uses on GitHub",
          counted(several(*IRIS), 500),
          lambda s: {**s.columns(values=(500 * s.p).round()), "Species": s.text}, "R csv",
          options={"outputs": "votes", "labels": "Species", "columns": list(IRIS)}),
    Table("write.csv2", "R e1071, semicolons and decimal commas, classes as they came (known)",
          several("versicolor", "setosa", "virginica"), lambda s: {**s.columns(), "class": s.text},
          "R2 csv", True, {}),
    Table("Spark ML", "Spark ML transform to Parquet, vectors as lists; columns on GitHub", binary(),
          lambda s: {"label": s.y.astype(float), "rawPrediction": np.log(s.p), "probability": s.p,
                     "prediction": s.p.argmax(axis=1).astype(float)}, "parquet",
          options={"columns": ["probability"]}),
    Table("Spark ML as text", "Spark ML, vectors as texts as show() has them", binary(),
          lambda s: {"label": s.y, "probability": [str(row) for row in s.p.tolist()],
                     "prediction": s.p.argmax(axis=1)}),
    Table("BigQuery ML", "ML.PREDICT as JSON: predicted_label_probs is a list of label and prob", binary(),
          lambda s: {"label": s.y, "predicted_label": s.p.argmax(axis=1),
                     "predicted_label_probs": [[{"label": k, "prob": float(r[k])} for k in (1, 0)]
                                               for r in s.p]}, "jsonl"),
    Table("pipeline of Hugging Face", "transformers 5 pipeline: label is the prediction",
          binary("NEGATIVE", "POSITIVE"), lambda s: {"label": s.top, "score": s.p.max(axis=1)}, "jsonl"),
    Table("labels beside targets", "torch.save as npz: labels are predictions (known)", several(*IRIS),
          lambda s: {"logits": s.logits, "labels": s.p.argmax(axis=1), "targets": s.y}, "npz",
          options={"labels": "targets"}),
    Table("logits of timm", "timm validate, half precision (known)", several(*TEN),
          lambda s: {"logits": s.logits.astype(np.float16), "labels": s.y}, "npz", True, {}),
    Table("two splits of arrays", "val_ and test_logits, as papers on calibration keep (known)",
          several("0", "1", "2"),
          lambda s: {"val_logits": -s.logits, "val_labels": s.y, "test_logits": s.logits, "test_labels": s.y},
          "npz", options={"split": "test"}),
    Table("table of Weights & Biases", "W&B tables exported: truth, guess, score_0... (known)",
          several(*TEN[:10]), lambda s: {"image": s.ids("{}.png"), "guess": s.p.argmax(axis=1),
                                         "truth": s.y, **s.columns("score_{}")},
          options={"columns": ["score_*"]}),
    Table("savetxt of Keras", "np.savetxt(model.predict(x)): no header (known)", several(*IRIS),
          lambda s: [",".join(f"{v:.18e}" for v in row) for row in s.p], "bare csv"),
    Table("LIBSVM", "LIBSVM 3 svm-predict -b 1: the first column is the prediction (cjlin1/libsvm)",
          binary("-1", "1"),
          lambda s: ["labels 1 -1", *(f"{t} {p[1]:.6g} {p[0]:.6g}"
                                      for t, p in zip(s.top, s.p, strict=True))], "lines txt",
          options={"columns": ["-1", "1"], "labels": "{folder}/truth.npy"}),
]

CONTESTS = [
    Table("sentiment", "reviews scored as positive and negative, labels 1 and 0 (known)", binary(),
          lambda s: {"review": s.ids("text {}"), "positive": s.p1, "negative": s.p[:, 0], "label": s.y},
          options={"columns": ["negative", "positive"]}),
    Table("chest radiographs", "findings of chest X-rays, a prob_ each (known)",
          labels("Atelectasis", "Cardiomegaly", "Edema", "Effusion"),
          lambda s: {"path": s.ids("p{}.jpg"), **s.columns("prob_{}"), **s.columns("label.{}", s.y)},
          options={"outputs": "label_probabilities", "columns": ["prob_*"]}),
    Table("dogs and cats", "Kaggle submission id,label, whose label is P(dog)", binary(),
          lambda s: {"id": s.id + 1, "label": s.p1, "is_dog": s.y},
          options={"columns": ["label"], "labels": "is_dog", "outputs": "probability"}),
    Table("products", "Kaggle Otto submissions on GitHub, with the target",
          several(*(f"Class_{k}" for k in range(1, 10)), digits=4),
          lambda s: {"id": s.id + 1, **s.columns(), "target": s.text}, complete=True, options={}),
    Table("toxic comments merged", "Kaggle toxic comments, merge of two such tables: _x and _y",
          labels("toxic", "obscene", "threat", "insult"),
          lambda s: {"id": s.ids("{:016x}"), **s.columns("{}_x"), **s.columns("{}_y", s.y)}),
    Table("toxic comments that were not scored", "Kaggle test_labels.csv: labels of -1",
          labels("toxic", "obscene", "threat", "insult", gaps=True),
          lambda s: {"id": s.ids("{:016x}"), **s.columns(), **s.columns("label.{}", s.gap(s.y, -1))},
          options={"ignore_label": -1, "outputs": "label_probabilities"}),
    Table("brain activity", "Kaggle HMS submission: _vote, and probabilities", several(*EEG, digits=4),
          lambda s: {"eeg_id": s.id + 3911565283, **dict(zip(VOTES, s.p.T, strict=True)),
                     "expert_consensus": s.text},
          options={"columns": VOTES, "class_names": list(EEG), "labels": "expert_consensus"}),
    Table("arena", "Kaggle LMSYS submission with a label", several("model_a", "model_b", "tie"),
          lambda s: {"id": s.id + 136060, **s.columns("winner_{}"), "label": s.y},
         options={"columns": ["winner_model_a", "winner_model_b", "winner_tie"]}),
    Table("melanoma", "Kaggle SIIM-ISIC submission: target is a probability", binary(rare=True),
          lambda s: {"image_name": s.ids("ISIC_{:07d}"), "target": s.p1, "label": s.y},
          options={"columns": ["target"], "outputs": "probability", "labels": "label"}),
    Table("skin lesions", "ISIC 2018 task 3 (isic-challenge-scoring)", several(*SKIN, digits=6),
          lambda s: {"image": s.ids("ISIC_{:07d}"), **s.columns(), "label": s.text}, "csv", True, {}),
    Table("skin lesions with weights", "ISIC ground truth: score_weight, validation_weight",
          weighted(several(*SKIN, digits=6)),
          lambda s: {"image": s.ids("ISIC_{:07d}"), **s.columns(), "score_weight": s.weights,
                     "validation_weight": s.one_of(0.0, 1.0), "diagnosis": s.text},
          options={"columns": list(SKIN), "labels": "diagnosis", "sample_weight": "score_weight"}),
    Table("light curves", "Kaggle PLAsTiCC, %.3e; writers of it on GitHub", several(*LIGHT),
          lambda s: {"object_id": s.id + 13, **s.columns("class_{}", np.array([float(f"{v:.3e}")
                     for v in s.p.ravel()]).reshape(s.p.shape)), "true_target": s.text},
          options={"columns": ["class_*"], "labels": "true_target"}),
]

GAMES = [
    Table("games of basketball", "fivethirtyeight/checking-our-work-data nba_games.csv", binary(),
          lambda s: {"season": [2022] * N, "date": ["2022-06-16"] * N, "team1": s.one_of("Celtics", "Heat"),
                     "team2": s.one_of("Warriors", "Suns"), "prob1": s.p1, "prob1_outcome": s.y,
                     "prob2": s.p[:, 0], "prob2_outcome": 1 - s.y},
          options={"columns": ["prob1"], "labels": "prob1_outcome", "outputs": "probability"}),
    Table("matches of soccer", "fivethirtyeight/checking-our-work-data club_soccer_matches.csv",
          several("1", "2", "tie", digits=4),
          lambda s: {"season": [2021] * N, "league_id": s.one_of(1843, 2411), "team1": s.one_of("Lille"),
                     "team2": s.one_of("Nice"),
                     **{k: v for c, name in enumerate(s.names)
                        for k, v in ((f"prob{name}", s.p[:, c]), (f"prob{name}_outcome", 1 * (s.y == c)))}}),
    Table("world cup", "stefan-stein/womens_world_cup_2023 output.csv, with a result",
          several("team1_win", "team2_win", "draw"),
          lambda s: {"team1": s.one_of("New Zealand"), "team2": s.one_of("Norway"),
                     "group": s.one_of("A", "B"), **s.columns("p_{}"), "result": s.text}, "R csv",
          options={"columns": ["p_*"], "labels": "result"}),
    Table("odds", "football-data.co.uk E0.csv (terrydolan/prem)", of_odds("H", "D", "A"),
          lambda s: {"Div": ["E0"] * N, "HomeTeam": s.one_of("Arsenal"), "FTHG": s.one_of(0, 1, 2),
                     "FTAG": s.one_of(0, 1, 2), "FTR": s.text, **s.columns("B365{}", (1 / s.p).round(2))},
          options={"columns": ["B365H", "B365D", "B365A"], "labels": "FTR", "outputs": "odds",
                   "class_names": ["H", "D", "A"]}),
    Table("standings", "baseball writes .634 and calls it pct (known)", binary(digits=3),
          lambda s: {"team": s.one_of("SEA", "BOS"), "pct": s.p1, "label": s.y},
          options={"columns": ["pct"], "outputs": "probability"}),
    Table("poker", "probabilities of actions: a class is called fold (known)",
          several("fold", "call", "raise"), lambda s: {**s.columns(), "label": s.text}, complete=True,
          options={}),
]

SPEECH = [
    Table("trials of speakers", "BOSARIS, Kaldi: log-likelihood ratios (known)",
          binary("nontarget", "target"),
          lambda s: {"modelid": s.ids("m{}"), "segmentid": s.ids("s{}.sph"), "llr": s.log_odds,
                     "label": s.text},
          options={"columns": ["llr"], "outputs": "logit", "class_names": ["nontarget", "target"]}),
    Table("voices in court", "forensic log10LR; programs of it on GitHub", binary("different", "same"),
          lambda s: {"pair": s.ids("a{0}-b{0}"), "log10LR": s.log_odds / np.log(10),
                     "truth": s.text},
          options={"columns": ["log10LR"], "outputs": "log-odds:10", "class_names": ["different", "same"]}),
    Table("bits", "log-odds in bits, as profile searches give (known)", binary(),
          lambda s: {"target": s.y, "bit_score": s.log_odds / np.log(2)},
          options={"columns": ["bit_score"], "outputs": "log-odds:2"}),
    Table("languages", "language identification: classes id and no (known)",
          several("da", "id", "no", "sv", digits=5), lambda s: {**s.columns(), "label": s.text},
          complete=True, options={}),
    Table("languages of fastText", "fastText 0.9.2 predict(k=-1): each probability is 1e-5 too large",
          too_sure(several("de", "en", "fr", "it")),
          lambda s: {**s.columns(values=(s.p + 1e-5).astype(np.float32)), "label": s.text}, "csv", True, {}),
    Table("languages, likelihoods", "NIST LRE, a column a language (known)",
          several("eng", "spa", "no", "id"),
          lambda s: {"segmentid": s.ids("lre_{}.sph"), **s.columns(values=s.logits), "label": s.text}, "tsv",
          options={"outputs": "logits", "columns": ["eng", "spa", "no", "id"]}),
]

LIFE = [
    Table("genotypes", "VCF GL, log10 likelihoods; GT:GL on GitHub", several("0/0", "0/1", "1/1"),
          lambda s: {"CHROM": s.one_of("chr1", "chrX"), "POS": s.id + 10177,
                     **s.columns("GL_{}", (np.log10(s.p / s.p.max(axis=1, keepdims=True)))), "GT": s.text},
          "tsv", options={"columns": ["GL_*"], "outputs": "log-odds:10", "labels": "GT",
                          "class_names": ["0/0", "0/1", "1/1"]}),
    Table("genotypes, phred", "VCF PL, -10 log10 (known)", several("0/0", "0/1", "1/1"),
          lambda s: {**s.columns("PL_{}", _phred(s.p)), "label": s.text}, "tsv"),
    Table("genotypes, beagle", "ANGSD beagle.gz: one name thrice", several("0", "1", "2", digits=6),
          lambda s: ["marker\tallele1\tallele2\tInd0\tInd0\tInd0\tlabel",
                     *(f"chr1_{i}\t0\t2\t" + "\t".join(f"{v:.6f}" for v in p) + f"\t{y}"
                       for i, (p, y) in enumerate(zip(s.p, s.y, strict=True)))], "lines tsv"),
    Table("missense variants", "AlphaMissense am_pathogenicity, with ClinVar", binary("benign", "pathogenic"),
          lambda s: {"uniprot_id": s.ids("Q{:05d}"), "protein_variant": s.ids("A{}V"),
                     "am_pathogenicity": s.p1.round(4), "am_class": s.one_of("likely_benign", "ambiguous"),
                     "clinvar": s.text}, "tsv",
          options={"columns": ["am_pathogenicity"], "labels": "clinvar", "outputs": "probability",
                   "class_names": ["benign", "pathogenic"]}),
    Table("signal peptides", "SignalP 6 prediction_results, with the truth",
          several("OTHER", "SP(Sec/SPI)", "LIPO(Sec/SPII)", "TAT(Tat/SPI)", "PILIN(Sec/SPIII)", digits=6),
          lambda s: {"# ID": s.ids("sp|P{:05d}"), "Prediction": s.top, **s.columns(), "CS Position": [""] * N,
                     "kingdom type": s.text}, "tsv", options={"labels": "kingdom type"}),
    Table("places in a cell", "DeepLoc 2 results, any number of places",
          labels("Cytoplasm", "Nucleus", "Membrane", "Golgi apparatus"),
          lambda s: {"Protein_ID": s.ids("P{:05d}"), "Localizations": s.one_of("Nucleus"), **s.columns(),
                     **s.columns("label.{}", s.y)}, options={"outputs": "label_probabilities"}),
    Table("types of cells", "CellTypist probability_matrix.csv: a sigmoid a type (known)",
          several("B cells", "DC1", "Macrophages", "Tcm/Naive helper T cells"),
          lambda s: {"barcode": s.ids("AAAC{}-1"), **s.columns(values=s.margins), "label": s.text}),
    Table("galaxies", "Galaxy Zoo 1 table 2: P_CS is a sum of others; readers of it on GitHub",
          several("EL", "CW", "ACW", "EDGE", "DK", "MG", digits=3),
          lambda s: {"OBJID": s.id + 587727178986356823, "RA": s.number(0, 360, 4),
                     "DEC": s.number(-10, 60, 4), "NVOTE": s.number(20, 80, 0), **s.columns("P_{}"),
                     "P_CS": s.p[:, 1:4].sum(axis=1).round(3), "label": s.text},
          options={"columns": [f"P_{k}" for k in ("EL", "CW", "ACW", "EDGE", "DK", "MG")]}),
    Table("species", "presence at coordinates: y is a latitude (known)", binary(rare=True),
          lambda s: {"species": ["Bradypus"] * N, "x": s.number(-80, -50, 4), "y": s.number(-20, 10, 4),
                     "cloglog": s.p1, "presence": s.y},
          options={"columns": ["cloglog"], "labels": "presence", "outputs": "probability"}),
    Table("markers of cancer", "ddsjoberg/dcurves data-raw/dca.csv", binary(rare=True),
          lambda s: {"patientid": s.id + 1, "cancer": s.y, "dead": s.one_of(0, 1),
                     "ttcancer": s.number(0, 5, 6), "risk_group": s.one_of("low", "high"),
                     "age": s.number(40, 80, 5), "famhistory": s.one_of(0, 1), "marker": s.number(0, 3, 6),
                     "cancerpredmarker": s.p1.round(7)},
          options={"columns": ["cancerpredmarker"], "labels": "cancer", "outputs": "probability"}),
    Table("slides", "hayden-farquhar/PanRareWSI results/oof_predictions.csv", binary(digits=6, rare=True),
          lambda s: {"cohort": s.one_of("ACC", "UVM"), "biomarker": s.one_of("TP53"), "tier": ["primary"] * N,
                     "patient_id": s.ids("TCGA-OR-{:04d}"), "y_true": s.y, "oof_proba": s.p1,
                     "fold": s.one_of(*range(5))},
          options={"outputs": "probability", "columns": ["oof_proba"]}),
    Table("glaucoma", "Dfinnnn/VisionK_VitalK_IDSC2026 results/test_predictions.csv", binary(digits=4),
          lambda s: {"image_path": s.ids("Images\\{}_1.jpg"), "true_label": s.y, "raw_probability": s.p1,
                     "cal_probability": (s.p1**1.4).round(4), "risk_score": (100 * s.p1).round(1),
                     "prediction": 1 * (s.p1 > 0.5), "correct": 1 * ((s.p1 > 0.5) == s.y),
                     "risk_level": s.one_of("Low Risk", "High Risk"), "outcome": s.one_of("TN", "TP")},
          options={"columns": ["raw_probability"], "labels": "true_label"}),
    Table("emotions", "Yy-711-QAQ/711-emotion outputs/test_predictions.csv: prob_ of one sigmoid each",
          several("angry", "happy", "neutral", "sad"),
          lambda s: {"id": s.ids("G{:05d}_11"), "true_label": s.y, "pred_label": s.p.argmax(axis=1),
                     **s.columns("prob_{}", s.margins.round(8))}),
    Table("machine texts", "AmirhosseinHonardoust/Detector-Reliability-Report-Card test_predictions.csv",
          several("ai", "human", "post_edited_ai"),
          lambda s: {"text": s.ids("Asunto: {},\nsaludos"), "label": s.text, **s.columns("p_{}"),
                     "pred_label": s.top, "confidence": s.p.max(axis=1), "disagree": s.one_of(0, 1)},
          options={"columns": ["p_ai", "p_human", "p_post_edited_ai"]}),
]

RISKS = [
    Table("monitored work from home", "NannyML/nannyml california_housing_reference.csv", binary(digits=2),
          lambda s: {"id": s.id, "MedInc": s.number(1, 10, 4), "Latitude": s.number(32, 42, 2),
                     "Longitude": s.number(-124, -114, 2), "timestamp": ["2020-10-01 00:00:00"] * N,
                     "clf_target": s.y, "y_pred_proba": s.p1, "y_pred": 1 * (s.p1 > 0.5)},
          options={"columns": ["y_pred_proba"], "labels": "clf_target"}),
    Table("audited recidivism", "dssg/aequitas compas_for_aequitas.csv, with its score as a probability",
          binary(digits=3), lambda s: {"entity_id": s.id + 1, "score": s.p1, "label_value": s.y,
                                       "race": s.one_of("Other"), "sex": s.one_of("Male", "Female"),
                                       "age_cat": s.one_of("25 - 45")},
          options={"columns": ["score"], "labels": "label_value", "outputs": "probability"}),
    Table("deciles", "propublica/compas-analysis compas-scores-two-years.csv", binary(digits=1),
          lambda s: {"id": s.id + 1, "name": s.ids("n {}"), "age": s.number(18, 80, 0),
                     "decile_score": (10 * s.p1).round().astype(int), "two_year_recid": s.y},
          options={"columns": ["decile_score"], "labels": "two_year_recid", "outputs": "points:0:10"}),
    Table("scorecard", "credit scores of 300 to 850 points (known)", binary(),
          lambda s: {"account": s.ids("a{}"), "score": 300 + 550 * s.p1, "good": s.y},
          options={"columns": ["score"], "labels": "good", "outputs": "points:300:850"}),
    Table("default in percent", "PD in percent (known)", binary(rare=True),
          lambda s: {"loan_id": s.ids("L{}"), "pd_pct": (100 * s.p1).round(2), "label": s.y},
          options={"outputs": "percent", "columns": ["pd_pct"]}),
    Table("rain", "MET point statistics, probability in steps of 10 % (known)", binary(digits=1),
          lambda s: {"FCST_VALID_BEG": ["20240101_120000"] * N, "OBS_SID": s.ids("KDEN{}"),
                     "PoP": (100 * s.p1).round().astype(int), "rain": s.y},
          options={"columns": ["PoP"], "labels": "rain", "outputs": "percent"}),
    Table("percent of three", "shares of classes in whole percent (known)",
          several("below", "normal", "above", digits=2),
          lambda s: {**s.columns("pct_{}", (100 * s.p).round().astype(int)), "label": s.text},
          complete=True, options={}),
]

LANGUAGE_MODELS = [
    Table("log-probabilities of choices", "an LLM's logprob of A to D, which are not all (known)",
          several("A", "B", "C", "D"),
          lambda s: {"question": s.ids("What is {}?"), **s.columns("logprob_{}", np.log(0.93 * s.p)),
                     "answer": s.text},
          options={"columns": ["logprob_*"], "outputs": "logits", "labels": "answer"}),
    Table("lists of log-probabilities", "JSON lines with logprobs (known)", several("0", "1", "2"),
          lambda s: {"id": s.ids("q{}"), "logprobs": np.log(s.p), "label": s.y}, "jsonl",
          options={"columns": ["logprobs"], "outputs": "log_probs"}),
    Table("self-consistency", "counts of 40 sampled answers (known)", counted(several("A", "B", "C"), 40),
          lambda s: {"question": s.ids("q{}"), **s.columns(values=(40 * s.p).round().astype(int)),
                     "label": s.text}, options={"columns": ["A", "B", "C"], "outputs": "votes:40"}),
    Table("losses", "the loss of each answer (known)", several("A", "B", "C"),
          lambda s: {**s.columns("loss_{}", -np.log(s.p)), "label": s.text},
          options={"columns": ["loss_*"], "outputs": "neg-log-p"}),
]

ROWS = [
    Table("bootstrapped rows", "ids drawn again and again (known)", grouped(binary(), each=3),
          lambda s: {"id": s.ids("p{}"), "p": s.p1, "y": s.y}, complete=True, options={}, groups=N // 3),
    Table("each id ten times", "repeated cross-validation (known)", grouped(binary(), each=10),
          lambda s: {"id": s.id, "repeat": np.arange(N) % 10, "prob": s.p1, "label": s.y},
          options={"columns": ["prob"], "groups": "id"}, groups=N // 10),
    Table("-1 for none", "a probability of -1 where no model ran (known)", binary(gaps=True),
          lambda s: {"prob": s.gap(s.p1, -1.0), "label": s.y}, options={"missing": -1}),
    Table("-999 for none", "-999 of all classes, as rasters have (known)", several(*IRIS, gaps=True),
          lambda s: {**s.columns("prob_{}", s.gap(s.p, -999.0)), "label": s.text}, options={"missing": -999}),
    Table("9 for unknown", "registers of patients: 9 is unknown (known)", binary(gaps=True),
          lambda s: {"prob": s.p1, "label": s.gap(s.y, 9)}, options={"ignore_label": 9}),
    Table("missing scores", "pandas, NaN after a left join (known)", binary(gaps=True),
          lambda s: {"prob": s.gap(s.p1, np.nan), "label": s.y}),
    Table("the label twice", "label of one rater, y_true of another (known)", several(*IRIS),
          lambda s: {**s.columns("prob_{}"), "label": s.one_of(*IRIS), "y_true": s.text},
          options={"labels": "y_true", "columns": ["prob_*"]}),
    Table("a survey", "sampling weights (known)", weighted(binary(rare=True)),
          lambda s: {"weight": s.weights, "prob": s.p1, "label": s.y}, complete=True, options={}),
    Table("a wide table", "Home Credit features, and prob_default of a model", binary(rare=True),
          lambda s: {"SK_ID_CURR": s.id + 100001, **{f"EXT_SOURCE_{k}": s.number(0, 1, 6) for k in range(9)},
                     "TARGET": s.y, "prob_default": s.p1}, options={"columns": ["prob_default"]}),
    Table("None and NA", "classes called None and NA (known)", several("NA", "None", "mild", "severe"),
          lambda s: {**s.columns(), "label": s.text}, complete=True, options={}),
    Table("truths of JSON", "JSON lines with true and false (known)", binary(),
          lambda s: {"proba": s.p1, "label": s.y.astype(bool)}, "jsonl", True, {}),
]

# fmt: on
TABLES = [*LIBRARIES, *CONTESTS, *GAMES, *SPEECH, *LIFE, *RISKS, *LANGUAGE_MODELS, *ROWS]
