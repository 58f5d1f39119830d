"""Claim: what a public exporter makes of a classifier is served calibrated, or refused with the cause.

    python benchmarks/producers.py [NAME ...]

One small classifier of each kind of producer, made and exported by its own converter, in the pinned
environment of requirements-producers.txt. Its own probabilities are calibrated by numpy, the file by
`fuse onnx --against` them, and each runtime's confidence is compared. A wrong number is an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

BACKEND = os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ["OMP_NUM_THREADS"] = os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "tests" / "support")]

import peers  # noqa: E402

if __name__ == "__main__":
    peers.rerun_in("requirements-producers.txt")

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from calib_serve import Artifact, calibrate  # noqa: E402
from calib_serve.core.errors import CalibServeError  # noqa: E402
from calib_serve.fuse import fuse_onnx  # noqa: E402

CLOSE = 1e-5
METHODS = ("temperature", "vector")
"""Kinds of calibration: one that keeps the order, one that tells the classes apart."""

Feeds = dict[str, NDArray[Any]]
Floats = NDArray[np.floating[Any]]
Ran = Callable[[Path, Feeds], Mapping[str, NDArray[Any]]]


@dataclass(frozen=True)
class Made:
    """Rows for a file, and the producer's own scores (n, K) of these rows with their labels (n,)."""

    feeds: Feeds
    scores: Floats
    labels: NDArray[np.int64]
    outputs: str = "probabilities"


@dataclass(frozen=True)
class Producer:
    """A kind of classifier: the packages that make and convert it, the function, and Keras' backend."""

    name: str
    packages: tuple[str, ...]
    make: Callable[[Path], Made]
    backend: str = BACKEND

    @property
    def versions(self) -> str:
        return ", ".join(f"{name} {version(name)}" for name in self.packages)


def data(name: str) -> tuple[Floats, NDArray[np.int64]]:
    """Rows of scikit-learn's data sets in float32, with a fifth of the labels drawn anew: nothing is sure."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))[:700]
    x, y = x[order].astype("f4"), y[order]
    return x, np.where(rng.random(len(y)) < 0.2, rng.integers(0, y.max() + 1, len(y)), y)


# --- tables: scikit-learn, LightGBM, XGBoost, CatBoost -----------------------------------------------


def tables(
    make: Callable[[], Any], write: Callable[[Any, Floats, Path], str], name: str
) -> Callable[[Path], Made]:
    """Fit on half of the rows, write the file, and predict the other half."""

    def made(path: Path) -> Made:
        x, y = data(name)
        half = len(y) // 2
        model = make().fit(x[:half], y[:half])
        read = write(model, x[half:], path)
        labels = y[half:]
        if model.classes_.dtype.kind in "OU":
            labels = np.array([list(model.classes_).index(Named.words[i]) for i in labels])
        return Made({read: x[half:]}, np.asarray(model.predict_proba(x[half:])), labels)

    return made


def by_skl2onnx(model: Any, x: Floats, path: Path) -> str:
    from skl2onnx import to_onnx

    opsets = {"": 18, "ai.onnx.ml": 3}
    onnx.save(to_onnx(model, x[:1], target_opset=opsets, options={id(model): {"zipmap": False}}), path)
    return "X"


def by_onnxmltools(model: Any, x: Floats, path: Path) -> str:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("X", FloatTensorType([None, x.shape[1]]))]
    if type(model).__module__.startswith("lightgbm"):
        found = onnxmltools.convert_lightgbm(model, initial_types=types, zipmap=False, target_opset=15)
    else:
        found = onnxmltools.convert_xgboost(model, initial_types=types, target_opset=15)
    onnx.save(found, path)
    return "X"


def by_catboost(model: Any, x: Floats, path: Path) -> str:
    model.save_model(str(path), format="onnx")
    return "features"


def estimator(name: str, *given: Any, **options: Any) -> Any:
    from importlib import import_module

    home, _, called = name.rpartition(".")
    return getattr(import_module(f"sklearn.{home}"), called)(*given, **options)


def of_sklearn(shown: str, made: Callable[[], Any], name: str = "digits") -> Producer:
    return Producer(shown, ("scikit-learn", "skl2onnx"), tables(made, by_skl2onnx, name))


def lightgbm(**options: Any) -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=10, verbose=-1, n_jobs=1, random_state=0, **options)


def of_lightgbm(shown: str, name: str = "wine", **options: Any) -> Producer:
    return Producer(
        shown, ("lightgbm", "onnxmltools"), tables(lambda: lightgbm(**options), by_onnxmltools, name)
    )


def xgboost(**options: Any) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(**{"n_estimators": 10, "n_jobs": 1, "random_state": 0, **options})


def of_xgboost(shown: str, name: str = "wine", **options: Any) -> Producer:
    return Producer(
        shown, ("xgboost-cpu", "onnxmltools"), tables(lambda: xgboost(**options), by_onnxmltools, name)
    )


def catboost(**options: Any) -> Any:
    from catboost import CatBoostClassifier

    return CatBoostClassifier(iterations=10, verbose=0, allow_writing_files=False, thread_count=1, **options)


def of_catboost(shown: str, name: str = "wine", **options: Any) -> Producer:
    return Producer(shown, ("catboost",), tables(lambda: catboost(**options), by_catboost, name))


def logistic_loss(y: Floats, z: Floats) -> tuple[Floats, Floats]:
    """Gradient and second derivative of the logistic loss, as LightGBM takes an objective of one's own."""
    p = 1 / (1 + np.exp(-z))
    return p - y, p * (1 - p)


class Named:
    """Fits a classifier of words, whose order is not that of the numbers."""

    words = np.array(["mustang", "virginica", "aestivalis"])

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def fit(self, x: Floats, y: NDArray[np.int64]) -> Any:
        return self.make().fit(x, self.words[y])


def texts(path: Path) -> Made:
    """A pipeline of a column of texts, one of categories and one of numbers."""
    import pandas as pd
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(0)
    n = 400
    words = np.array(["late", "refund", "great", "broken", "love", "slow", "fast", "lost"])
    frame = pd.DataFrame(
        {
            "text": [" ".join(rng.choice(words, 4)) for _ in range(n)],
            "land": rng.choice(["DE", "FR", "US"], n),
            "price": rng.normal(20, 5, n).astype("f4"),
        }
    )
    good = frame.text.str.count("great|love|fast").to_numpy() + rng.normal(0, 1, n)
    y = (np.digitize(good, [1, 2])).astype(np.int64)
    parts = [
        ("t", TfidfVectorizer(), "text"),
        ("l", OneHotEncoder(), ["land"]),
        ("p", StandardScaler(), ["price"]),
    ]
    model = make_pipeline(ColumnTransformer(parts), LogisticRegression(max_iter=1000)).fit(
        frame[:200], y[:200]
    )
    types = [("text", StringTensorType([None, 1])), ("land", StringTensorType([None, 1]))]
    types.append(("price", FloatTensorType([None, 1])))
    words_of = model[0].named_transformers_["t"]
    # The default, en_US, is a locale that containers lack, and onnxruntime refuses the file there.
    plain = {id(model): {"zipmap": False}, id(words_of): {"locale": "C"}}
    onnx.save(
        to_onnx(model, initial_types=types, target_opset={"": 18, "ai.onnx.ml": 3}, options=plain), path
    )
    rest = frame[200:]
    feeds = {name: rest[[name]].to_numpy().astype("f4" if name == "price" else str) for name in frame}
    return Made(feeds, model.predict_proba(rest), y[200:])


# --- networks: Keras, torch, transformers, timm, JAX --------------------------------------------------


def drawn(logits: Floats) -> NDArray[np.int64]:
    """Labels of a network with random weights, drawn by half of its logits: its temperature is 2."""
    noise = np.random.default_rng(0).gumbel(size=logits.shape)
    return np.asarray(np.argmax(logits / 2 + noise, axis=1))


def keras(
    *, head: str = "softmax", functional: bool = False, activation: str = "gelu"
) -> Callable[[Path], Made]:
    def made(path: Path) -> Made:
        import keras

        keras.utils.set_random_seed(0)
        inputs = keras.Input((8, 8, 1), name="image")
        y = keras.layers.Rescaling(1 / 8.0)(inputs)
        y = keras.layers.Conv2D(6, 3, activation=activation)(y)
        y = keras.layers.GlobalAveragePooling2D()(y)
        if functional:
            y = keras.layers.Concatenate()([y, keras.layers.LayerNormalization()(y)])
        model = keras.Model(inputs, keras.layers.Dense(10, activation=head or None)(y))
        x, labels = data("digits")
        x = x.reshape(-1, 8, 8, 1)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=not head))
        model.fit(x[:350], labels[:350], epochs=8, verbose=0, batch_size=16)
        model.export(str(path), format="onnx", verbose=False)
        found = np.asarray(model.predict(x[350:], verbose=0))
        name = onnx.load(path, load_external_data=False).graph.input[0].name
        return Made({name: x[350:]}, found, labels[350:], "probabilities" if head else "logits")

    return made


def torch_net(how: str, *, final: str = "") -> Callable[[Path], Made]:
    def made(path: Path) -> Made:
        import torch
        from torch import nn

        torch.manual_seed(0)
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 10))
        model = nn.Sequential(body, *([getattr(nn, final)(dim=1)] if final else []))
        x, labels = data("digits")
        x = x.reshape(-1, 1, 8, 8) / 16
        optimiser = torch.optim.Adam(body.parameters(), 3e-3)
        for _ in range(60):
            loss = nn.functional.cross_entropy(body(torch.tensor(x[:350])), torch.tensor(labels[:350]))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        model.eval()
        export_torch(model, (torch.tensor(x[350:354]),), path, how, ["x"])
        with torch.no_grad():
            return Made({"x": x[350:]}, model(torch.tensor(x[350:])).numpy(), labels[350:], of(final))

    return made


def of(final: str) -> str:
    return {"Softmax": "probabilities", "LogSoftmax": "log_probs"}.get(final, "logits")


def export_torch(model: Any, inputs: tuple[Any, ...], path: Path, how: str, names: list[str]) -> None:
    import torch

    if how == "script":
        inner = torch.jit.script(model)
        free = {name: {0: "n"} for name in names}
        torch.onnx.export(inner, inputs, path, dynamo=False, input_names=names, dynamic_axes=free)
    elif how == "trace":
        free = {name: {0: "n"} for name in names}
        torch.onnx.export(model, inputs, path, dynamo=False, input_names=names, dynamic_axes=free)
    else:
        shapes = tuple({0: torch.export.Dim("n")} for _ in names)
        torch.onnx.export(model, inputs, path, input_names=names, dynamic_shapes=shapes, verbose=False)


def timm_net(name: str) -> Callable[[Path], Made]:
    def made(path: Path) -> Made:
        import torch
        from libraries import torchvision_here

        torchvision_here()  # which timm imports
        import timm

        torch.manual_seed(0)
        model = timm.create_model(name, pretrained=False, num_classes=5).eval()
        with torch.no_grad():
            for parameter in model.get_classifier().parameters():
                parameter.mul_(20)
        x = torch.randn(80, 3, 32, 32)
        export_torch(model, (x[:2],), path, "dynamo", ["x"])
        with torch.no_grad():
            logits = model(x).numpy()
        return Made({"x": x.numpy()}, logits, drawn(logits), "logits")

    return made


def transformer(kind: str) -> Callable[[Path], Made]:
    def made(path: Path) -> Made:
        import torch
        from libraries import torchvision_here

        torchvision_here()
        import transformers

        torch.manual_seed(0)
        small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=90, num_labels=4, pad_token_id=0, max_position_embeddings=40, **small
        )
        model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()

        class Logits(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, input_ids: Any, attention_mask: Any) -> Any:
                return self.model(input_ids=input_ids, attention_mask=attention_mask).logits

        ids = torch.randint(1, 90, (80, 12))
        mask = torch.ones_like(ids)
        ids[::3, 8:], mask[::3, 8:] = 0, 0
        with torch.no_grad():  # of some size, as those of a trained network
            model.classifier.weight *= 2 / model(input_ids=ids, attention_mask=mask).logits.std()
        export_torch(Logits(), (ids[:2], mask[:2]), path, "dynamo", ["input_ids", "attention_mask"])
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask).logits.numpy()
        return Made(
            {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}, logits, drawn(logits), "logits"
        )

    return made


def cross_encoder(path: Path) -> Made:
    """Pairs of texts and one logit, as sentence-transformers loads and exports them."""
    import torch
    from libraries import torchvision_here

    torchvision_here()
    from sentence_transformers import CrossEncoder
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    torch.manual_seed(0)
    words = [f"w{i}" for i in range(60)]
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = BertConfig(vocab_size=65, num_labels=1, max_position_embeddings=40, **small)
    with tempfile.TemporaryDirectory() as folder:
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        BertTokenizer(vocab={word: i for i, word in enumerate([*special, *words])}).save_pretrained(folder)
        BertForSequenceClassification(config).save_pretrained(folder)
        model = CrossEncoder(folder, device="cpu", activation_fn=torch.nn.Identity())
    rng = np.random.default_rng(0)
    pairs = [(" ".join(rng.choice(words, 3)), " ".join(rng.choice(words, 5))) for _ in range(80)]
    with torch.no_grad():  # of some size, as those of a trained network
        model.model.classifier.weight *= 2 / float(np.std(model.predict(pairs)))
        model.model.classifier.bias -= float(np.mean(model.predict(pairs)))
    logits = np.asarray(model.predict(pairs)).reshape(-1, 1)
    given = model.tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
    names = ["input_ids", "attention_mask", "token_type_ids"]

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.model

        def forward(self, *given: Any) -> Any:
            return self.model(**dict(zip(names, given, strict=True))).logits

    export_torch(Logits(), tuple(given[name][:2] for name in names), path, "trace", names)
    labels = (rng.random(80) < 1 / (1 + np.exp(-logits[:, 0] / 2))).astype(np.int64)
    return Made({name: given[name].numpy() for name in names}, logits, labels, "logit")


def tensorflow_net(path: Path) -> Made:
    import tensorflow as tf
    import tf2onnx

    x, labels = data("digits")
    x = x / 16
    tf.random.set_seed(0)
    weights = [tf.Variable(0.4 * tf.random.normal(shape)) for shape in ((64, 24), (24, 10))]

    def logits(x: Any) -> Any:
        return tf.matmul(tf.nn.relu(tf.matmul(x, weights[0])), weights[1])

    for _ in range(150):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[:350], logits(x[:350]))
            loss = tf.reduce_mean(losses)
        for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.3 * slope)
    signature = [tf.TensorSpec((None, 64), tf.float32, name="x")]
    probs = tf.function(lambda x: tf.nn.softmax(logits(x)), input_signature=signature)
    tf2onnx.convert.from_function(probs, signature, opset=18, output_path=str(path))
    return Made({"x": x[350:]}, probs(x[350:]).numpy(), labels[350:])


def jax_net(path: Path) -> Made:
    import jax
    import jax.numpy as jnp
    from jax2onnx import to_onnx

    x, labels = data("digits")
    x = x / 16
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    weights = [0.4 * jax.random.normal(keys[0], (64, 24)), 0.4 * jax.random.normal(keys[1], (24, 10))]

    def logits(weights: Any, x: Any) -> Any:
        return jax.nn.gelu(x @ weights[0]) @ weights[1]

    def loss(weights: Any) -> Any:
        chosen = jax.nn.log_softmax(logits(weights, x[:350]))[jnp.arange(350), labels[:350]]
        return -chosen.mean()

    step = jax.jit(jax.grad(loss))
    for _ in range(150):
        weights = [w - 0.3 * g for w, g in zip(weights, step(weights), strict=True)]

    def probs(x: Any) -> Any:
        return jax.nn.softmax(logits(weights, x))

    onnx.save(to_onnx(probs, [("n", 64)], model_name="net"), path)
    name = onnx.load(path).graph.input[0].name
    return Made({name: x[350:]}, np.asarray(probs(x[350:])), labels[350:])


# --- the matrix ---------------------------------------------------------------------------------------

FOREST = {"n_estimators": 20, "min_samples_leaf": 5, "random_state": 0}
TF2ONNX = ("tensorflow-cpu", "tf2onnx")
RANDOM = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}


def forest() -> Any:
    return estimator("ensemble.RandomForestClassifier", **FOREST)


def histogram() -> Any:
    return estimator("ensemble.HistGradientBoostingClassifier", max_iter=10)


def lda() -> Any:
    return estimator("discriminant_analysis.LinearDiscriminantAnalysis")


def by_distance() -> Any:
    return estimator("neighbors.KNeighborsClassifier", 9, weights="distance")


def logistic(**options: Any) -> Any:
    scale = estimator("preprocessing.StandardScaler")
    return estimator("pipeline.make_pipeline", scale, estimator("linear_model.LogisticRegression", **options))


def mixed(name: str, **options: Any) -> Any:
    return estimator(f"ensemble.{name}", [("a", logistic()), ("b", forest())], **options)


def calibrated(base: Any, method: str) -> Any:
    return estimator("calibration.CalibratedClassifierCV", base, method=method, cv=3)


PRODUCERS: list[Producer] = [
    of_sklearn("logistic regression in a pipeline", logistic),
    of_sklearn("HistGradientBoosting", histogram),
    of_sklearn(
        "HistGradientBoosting, two classes",
        histogram, "breast_cancer",
    ),
    Producer("text, category and number columns", ("scikit-learn", "skl2onnx"), texts),
    of_sklearn("CalibratedClassifierCV, sigmoid", lambda: calibrated(forest(), "sigmoid")),
    of_sklearn("CalibratedClassifierCV, isotonic", lambda: calibrated(forest(), "isotonic")),
    of_sklearn("CalibratedClassifierCV, temperature", lambda: calibrated(logistic(), "temperature")),
    of_sklearn("MLP", lambda: estimator("neural_network.MLPClassifier", max_iter=30, random_state=0)),
    of_sklearn("SVC(probability)", lambda: estimator("svm.SVC", probability=True, random_state=0), "wine"),
    of_sklearn("naive Bayes, Gaussian", lambda: estimator("naive_bayes.GaussianNB"), "wine"),
    of_sklearn("naive Bayes, multinomial", lambda: estimator("naive_bayes.MultinomialNB", alpha=50)),
    of_sklearn("naive Bayes, complement", lambda: estimator("naive_bayes.ComplementNB", alpha=50)),
    of_sklearn("neighbours", lambda: estimator("neighbors.KNeighborsClassifier", 9)),
    of_sklearn("neighbours by distance",
               by_distance, "wine"),
    of_sklearn("LDA, two classes",
               lda, "breast_cancer"),
    of_sklearn("LDA", lda, "wine"),
    of_sklearn("QDA", lambda: estimator("discriminant_analysis.QuadraticDiscriminantAnalysis"), "wine"),
    of_sklearn("voting, soft",
               lambda: mixed("VotingClassifier", voting="soft", flatten_transform=False)),
    of_sklearn("voting, soft, flatten_transform", lambda: mixed("VotingClassifier", voting="soft")),
    of_sklearn("stacking", lambda: mixed("StackingClassifier", cv=3)),
    of_sklearn("bagging", lambda: estimator("ensemble.BaggingClassifier", logistic(), 5, random_state=0)),
    of_sklearn("Gaussian process", lambda: estimator("gaussian_process.GaussianProcessClassifier"), "wine"),
    of_sklearn("SGD, log loss",
               lambda: estimator("pipeline.make_pipeline", estimator("preprocessing.StandardScaler"),
                                 estimator("linear_model.SGDClassifier", loss="log_loss", random_state=0))),
    of_sklearn("one against the rest", lambda: estimator("multiclass.OneVsRestClassifier", logistic())),
    of_lightgbm("LightGBM, gbdt"),
    of_lightgbm("LightGBM, gbdt, two classes", "breast_cancer"),
    of_lightgbm("LightGBM, dart", boosting_type="dart"),
    of_lightgbm("LightGBM, rf", "breast_cancer", **RANDOM),
    of_lightgbm("LightGBM, linear trees", "breast_cancer", linear_tree=True),
    of_lightgbm("LightGBM, one against all", objective="multiclassova"),
    of_lightgbm("LightGBM, custom objective", "breast_cancer", objective=logistic_loss),
    of_lightgbm("LightGBM, sigmoid=2", "breast_cancer", sigmoid=2.0),
    of_xgboost("XGBoost, softprob"),
    of_xgboost("XGBoost, softmax", objective="multi:softmax"),
    of_xgboost("XGBoost, two classes", "breast_cancer"),
    of_xgboost("XGBoost, parallel trees", num_parallel_tree=4, subsample=0.7, n_estimators=5),
    of_xgboost("XGBoost, base_score=.8", "breast_cancer", base_score=0.8),
    of_xgboost("XGBoost, base_score of each class", base_score=[0.7, 0.2, 0.1]),
    of_xgboost("XGBoost, dart", booster="dart", rate_drop=0.3),
    of_xgboost("XGBoost, gblinear", booster="gblinear"),
    of_xgboost("XGBoost, vector leaves", multi_strategy="multi_output_tree"),
    of_catboost("CatBoost"),
    of_catboost("CatBoost, two classes", "breast_cancer"),
    of_catboost("CatBoost, boost_from_average", "breast_cancer", boost_from_average=True),
    of_catboost("CatBoost, one against all", loss_function="MultiClassOneVsAll"),
    Producer("CatBoost, class names", ("catboost",), tables(lambda: Named(catboost), by_catboost, "wine")),
    Producer("Keras, softmax", ("keras", "torch"), keras()),
    Producer("Keras, logits", ("keras", "torch"), keras(head="")),
    Producer("Keras, LayerNormalization", ("keras", "torch"), keras(head="", functional=True)),
    Producer("Keras over TensorFlow, gelu", ("keras", *TF2ONNX), keras(), "tensorflow"),
    Producer("Keras over TensorFlow, softmax", ("keras", *TF2ONNX), keras(activation="relu"), "tensorflow"),
    Producer("Keras over TensorFlow, logits",
             ("keras", *TF2ONNX), keras(head="", activation="relu"), "tensorflow"),
    Producer("Keras over TensorFlow, LayerNormalization",
             ("keras", *TF2ONNX), keras(head="", functional=True, activation="relu"), "tensorflow"),
    Producer("TensorFlow, softmax", TF2ONNX, tensorflow_net),
    Producer("torch, plain", ("torch", "onnxscript"), torch_net("dynamo")),
    Producer("torch, traced", ("torch",), torch_net("trace")),
    Producer("torch, scripted", ("torch",), torch_net("script")),
    Producer("torch, log-softmax inside", ("torch", "onnxscript"), torch_net("dynamo", final="LogSoftmax")),
    Producer("torch, softmax inside", ("torch", "onnxscript"), torch_net("dynamo", final="Softmax")),
    Producer("transformers, BERT", ("transformers", "torch"), transformer("Bert")),
    Producer("transformers, ModernBERT", ("transformers", "torch"), transformer("ModernBert")),
    Producer("sentence-transformers, cross-encoder",
             ("sentence-transformers", "torch"), cross_encoder),
    Producer("timm, ResNet-10", ("timm", "torch"), timm_net("resnet10t")),
    Producer("timm, ConvNeXt", ("timm", "torch"), timm_net("convnext_atto")),
    Producer("JAX, softmax", ("jax", "jax2onnx"), jax_net),
]  # fmt: skip


def by_ort(level: str) -> Ran:
    def run(path: Path, feeds: Feeds) -> Mapping[str, NDArray[Any]]:
        from onnx_runtimes import by_onnxruntime

        return by_onnxruntime(path, feeds, level)

    return run


def runtimes() -> dict[str, Ran]:
    from onnx_runtimes import by_openvino, by_reference, by_tract

    return {
        "onnxruntime": by_ort("ENABLE_ALL"),
        "unoptimised": by_ort("DISABLE_ALL"),
        "OpenVINO": by_openvino,
        "reference": by_reference,
        "tract": by_tract,
    }


def cell(run: Ran, made: Made, raw: Path, fused: Path, expected: Floats, near: float) -> str:
    """How far a runtime's confidence is from numpy's, what it lacks, or how far it has the raw file wrong."""
    from onnx_runtimes import CannotRun

    try:
        found = run(fused, made.feeds)
        apart = float(np.abs(np.asarray(found["confidence"]) - expected).max())
        if apart <= near:
            return f"{apart:.0e}"
        scores = np.asarray(list(run(raw, made.feeds).values())[-1])
    except CannotRun as error:
        return f"cannot: {short(error, 70)}"
    off = float(np.abs(scores - made.scores).max())
    return f"{apart:.0e}, raw {off:.0e}" if off > 1e-3 else f"{apart:.0e} WRONG"


def short(error: BaseException, most: int = 260) -> str:
    text = " ".join(str(error).split()).replace("|", "/")
    return text if len(text) <= most else text[:most] + "..."


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing on standard output, whoever writes there: torch prints graphs from C++."""
    sys.stdout.flush()
    kept = os.dup(1)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)


def written_by_us(make: Callable[[], Any], name: str) -> list[str]:
    """A classifier of scikit-learn or LightGBM calibrated and written by CalibratedClassifier.to_onnx."""
    from onnx_runtimes import by_onnxruntime
    from sklearn.frozen import FrozenEstimator

    from calib_serve.integrations.sklearn import CalibratedClassifier

    x, y = data(name)
    third = len(y) // 3
    fitted = FrozenEstimator(make().fit(x[:third], y[:third]))
    # LightGBM has a decision_function, and its converter has none.
    method = "predict_proba" if type(fitted.estimator).__name__ == "LGBMClassifier" else "auto"
    model = CalibratedClassifier(fitted, method="temperature", response_method=method)
    model.fit(x[third : 2 * third], y[third : 2 * third])
    with tempfile.TemporaryDirectory() as folder:
        path, rest = Path(folder, "ours.onnx"), x[2 * third :]
        try:
            with silence():
                model.to_onnx(path, rest)
        except CalibServeError as error:
            return [f"refused: {short(error)}"]
        found = by_onnxruntime(path, {"X": rest})["probabilities"]
    apart = float(np.abs(found - model.predict_proba(rest)).max())
    return [f"onnxruntime {apart:.0e}" + ("" if apart <= 1e-4 else " WRONG")]


def row(producer: Producer, folder: Path) -> list[str]:
    """The cells of one producer: what happened to each kind of calibration, in each runtime."""
    if producer.backend != BACKEND:  # a process has one
        command, env = [sys.executable, __file__, producer.name], {"KERAS_BACKEND": producer.backend}
        done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
        return done.stdout.strip().split(" | ")[2:] or [f"WRONG: {done.stderr[-200:]}"]
    raw = folder / "raw.onnx"
    try:
        with silence():
            made = producer.make(raw)
    except Exception as error:  # converters raise what they like
        return [f"not converted: {type(error).__name__}: {short(error.__cause__ or error)}"]
    return [line for method in METHODS for line in one(made, method, raw, folder / f"{method}.onnx")]


def one(made: Made, method: str, raw: Path, fused: Path) -> list[str]:
    half = len(made.labels) // 2
    known: Any = {"outputs": made.outputs, "cross_validate": False}
    try:
        artifact: Artifact = calibrate(made.scores[:half], made.labels[:half], method, **known)
        report = fuse_onnx(raw, artifact, fused, returns="all", against=(made.feeds, made.scores))
    except CalibServeError as error:
        return [f"{method}: refused: {short(error)}"]
    except Exception as error:  # which no user should meet
        return [f"{method}: WRONG: {type(error).__name__}: {short(error)}"]
    expected = artifact.probs(made.scores).max(axis=1)
    # What the converter's own float32 moves is not ours: the proof says how far the raw scores are apart.
    near = CLOSE + float(report.proof.partition(", ")[2].partition(" apart")[0])
    cells = [f"{name} {cell(run, made, raw, fused, expected, near)}" for name, run in runtimes().items()]
    return [f"{method}: " + ", ".join(cells)]


OURS: dict[str, tuple[Callable[[], Any], str]] = {
    "HistGradientBoosting": (histogram, "digits"),
    "LightGBM": (lightgbm, "wine"),
    "LightGBM, two classes": (lightgbm, "breast_cancer"),
    "LDA, two classes": (lda, "breast_cancer"),
    "neighbours by distance": (by_distance, "wine"),
    "SVC": (lambda: estimator("svm.SVC"), "wine"),
    "voting, soft": (lambda: mixed("VotingClassifier", voting="soft"), "digits"),
    "XGBoost": (xgboost, "wine"),
    "CatBoost": (catboost, "wine"),
}  # fmt: skip
"""What `CalibratedClassifier.to_onnx` is asked to write."""


def main() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    wrong, asked = 0, sys.argv[1:]
    rows: dict[str, Callable[[Path], list[str]]] = {}
    rows |= {f"{one.name} | {one.versions}": partial(row, one) for one in PRODUCERS}
    rows |= {f"to_onnx: {name} |": lambda _, one=one: written_by_us(*one) for name, one in OURS.items()}
    for name, made in rows.items():
        if not asked or any(word in name for word in asked):
            with tempfile.TemporaryDirectory() as folder:
                cells = made(Path(folder))
            wrong += sum("WRONG" in text for text in cells)
            print(f"{name} | " + " | ".join(cells), flush=True)
    sys.exit(f"{wrong} rows are wrong" if wrong else 0)


if __name__ == "__main__":
    main()
