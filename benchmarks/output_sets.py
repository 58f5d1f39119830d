"""Sets of scores that calibrators are compared on: networks', small models', streams', and many classes'.

Every set is a dict of cal_logits, cal_labels, test_logits, test_labels. Small models are fitted here, on data
that scikit-learn brings along or that lies in the folder CALIB_SERVE_DATA.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

Set = dict[str, np.ndarray]
TESTED = 8000
SMALL = 1e-12  # in the place of a probability of 0, for all methods alike


SIZES = (50, 100, 300, 1000)
DRAWS = {50: 6, 100: 6, 300: 5, 1000: 2}
SPLITS = 12  # of a model whose test part is small


def all_sets(data: Path) -> Iterator[tuple[str, Callable[[], list[Set]]]]:
    """Each set's name and what draws it: once, or so often that chance tells less than methods do.

    Networks' sets come whole and in parts of 50 to 1,000 calibration samples, small models' in other splits.
    """
    for name, make in (*networks(data), *larger_models(data), *streams(data)):
        whole = cache(make)
        yield name, lambda whole=whole: [whole()]
        for size in SIZES:
            yield f"{name}, {size}", lambda whole=whole, n=size: parts(whole(), n)
    yield from small_models()
    for name, make in many_classes():
        yield name, lambda make=make: [make()]


def networks(data: Path) -> Iterator[tuple[str, Callable[[], Set]]]:
    for path in sorted((data / "logits").glob("*.npz")):
        yield path.stem, lambda path=path: trimmed(dict(np.load(path)))


def parts(found: Set, size: int) -> list[Set]:
    """Some draws of ``size`` calibration samples; none where the set has not twice as many."""
    n = len(found["cal_labels"])
    if n < 2 * size:
        return []
    rows = [np.random.default_rng(seed).permutation(n)[:size] for seed in range(DRAWS[size])]
    return [{**found, **{key: found[key][row] for key in ("cal_logits", "cal_labels")}} for row in rows]


def trimmed(found: Set) -> Set:
    keys = ("cal_logits", "cal_labels", "test_logits", "test_labels")
    kept = {key: found[key][:TESTED] if key.startswith("test") else found[key] for key in keys}
    return {key: v.astype(np.float32 if "logits" in key else np.int64) for key, v in kept.items()}


def model_set(model, x: np.ndarray, y: np.ndarray, train: int, cal: int, split: int = 0) -> Set:
    """Log-probabilities of a model fitted to ``train`` rows, of the ``cal`` next and of the rest."""
    order = np.random.default_rng(split).permutation(len(y))
    first, second, rest = np.split(order, [train, train + cal])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small networks are stopped early on purpose
        model.fit(x[first], y[first])
    scores = {part: np.log(np.maximum(model.predict_proba(x[i]), SMALL)) for part, i in
              (("cal", second), ("test", rest[:TESTED]))}  # fmt: skip
    labels = {"cal": y[second], "test": y[rest[:TESTED]]}
    return trimmed(
        {f"{part}_{what}": of[part] for what, of in (("logits", scores), ("labels", labels)) for part in of}
    )


def forest() -> RandomForestClassifier:
    return RandomForestClassifier(50, random_state=0)


def network(hidden: int = 64, rounds: int = 80):
    return make_pipeline(StandardScaler(), MLPClassifier(hidden, max_iter=rounds, random_state=0))


def small_models() -> Iterator[tuple[str, Callable[[], list[Set]]]]:
    for name, load, train, cal in (
        ("digits", load_digits, 500, 600),
        ("breast cancer", load_breast_cancer, 120, 200),
        ("wine", load_wine, 40, 60),
        ("iris", load_iris, 30, 50),
    ):
        for kind, model in (("forest", forest()), ("Bayes", GaussianNB(var_smoothing=1e-3))):
            yield (
                f"{name}, {kind}",
                lambda load=load, model=model, t=train, c=cal: [
                    model_set(model, *load(return_X_y=True), t, c, split) for split in range(SPLITS)
                ],
            )


def larger_models(data: Path) -> Iterator[tuple[str, Callable[[], Set]]]:
    def digits() -> tuple[np.ndarray, np.ndarray]:
        parts = [np.load(data / "images" / f"mnist_{part}.npz") for part in ("t10k", "train_first10k")]
        x = np.concatenate([part["x"] for part in parts]).reshape(-1, 784) / 255
        return x, np.concatenate([part["y"] for part in parts])

    def features() -> tuple[np.ndarray, np.ndarray]:
        found = np.load(data / "features" / "akamaster_resnet20_cifar10.npz")
        return found["test"], found["test_labels"]

    for name, model in (("forest", forest()), ("network", MLPClassifier(64, max_iter=40, random_state=0))):
        yield f"MNIST, {name}", lambda model=model: model_set(model, *digits(), 2000, 5000)
    for name, model in (("network", network()), ("Bayes", GaussianNB())):
        yield f"CIFAR-10 features, {name}", lambda model=model: model_set(model, *features(), 1500, 3500)


def streams(data: Path) -> Iterator[tuple[str, Callable[[], Set]]]:
    def of(file: str, label: str) -> Set:
        found = np.load(data / "streams" / f"{file}.npz")
        p = np.clip(found["prob1"].astype(float), SMALL, 1 - 1e-7)
        z, y = np.stack([np.zeros(len(p)), np.log(p) - np.log1p(-p)], axis=1), found[label][-len(p) :]
        order = np.random.default_rng(1).permutation(len(p))
        cal, test = order[:5000], order[5000 : 5000 + TESTED]
        return trimmed(
            {"cal_logits": z[cal], "cal_labels": y[cal], "test_logits": z[test], "test_labels": y[test]}
        )

    yield "elec2", lambda: of("elec2_frozen_gb", "labels")
    yield "ACS employment", lambda: of("acs_employment_ma", "label")


def many_classes() -> Iterator[tuple[str, Callable[[], Set]]]:
    for classes, each, apart in ((50, 10, 0.8), (50, 30, 0.8), (100, 20, 0.9), (150, 30, 0.9)):
        for kind in KINDS:
            yield (
                f"{classes} classes of {each}, {kind}",
                lambda k=classes, e=each, a=apart, kind=kind: centres(k, e, a, kind),
            )
    yield "500 classes of 5, paraphrases", lambda: centres(500, 5, 1.0, "paraphrases")
    for name, train, apart in (("network", 40, 1.0), ("rare", 20, 0.8)):
        yield f"150 classes of 20, {name}", lambda t=train, a=apart: overlapping(150, t, a)


KINDS = ("alike", "paraphrases", "moved", "temperature")


def centres(classes: int, each: int, apart: float, kind: str, *, seed: int = 0, tested: int = 4000) -> Set:
    """Scores by the distance to centres of classes, estimated from 20 samples each.

    "alike": samples are drawn independently. "paraphrases": calibration samples come in fours that are nearly
    the same, test samples do not. "moved": classes have moved when they are tested. "temperature": labels are
    drawn from the scores by one temperature, so that there is nothing else to learn.
    """
    rng = np.random.default_rng([classes, each, seed, KINDS.index(kind)])
    centre, moved = rng.standard_normal((2, classes, 48))
    spread = rng.uniform(0.85, 1.15, (classes, 1))

    def samples(y: np.ndarray, copies: int = 1) -> np.ndarray:
        noise = np.repeat(rng.standard_t(4, (-(-len(y) // copies), 48)), copies, axis=0)[: len(y)]
        own = 0.3 * rng.standard_normal(noise.shape) if copies > 1 else 0
        return apart * centre[y] + spread[y] * (noise + own)

    trained = np.repeat(np.arange(classes), 20)
    x = samples(trained)
    found = np.stack([x[trained == k].mean(axis=0) for k in range(classes)])
    variance = (x - found[trained]).var()
    labels = {"cal": np.repeat(np.arange(classes), each), "test": rng.integers(0, classes, tested)}
    inputs = {
        "cal": samples(labels["cal"], 4 if kind == "paraphrases" else 1),
        "test": samples(labels["test"]),
    }
    if kind == "moved":
        inputs["test"] += 0.25 * moved[labels["test"]]
    logits = {part: (x @ found.T - (found**2).sum(axis=1) / 2) / variance for part, x in inputs.items()}
    if kind == "temperature":
        labels = {part: (z / 1.6 + rng.gumbel(size=z.shape)).argmax(axis=1) for part, z in logits.items()}
    both = (("logits", logits), ("labels", labels))
    return trimmed({f"{part}_{what}": of[part] for what, of in both for part in of})


def overlapping(k: int, train: int, apart: float) -> Set:
    """A small network on ``k`` overlapping classes with heavy tails, and 20 calibration samples of each."""
    rng = np.random.default_rng(k + train)
    centre = apart * rng.standard_normal((k, 48))
    spread = 0.7 * rng.standard_normal((k, 48, 4))
    y = np.tile(np.arange(k), train + 20 + TESTED // k)
    x = centre[y] + rng.standard_normal((len(y), 48))
    for part in np.array_split(np.arange(len(y)), 20):
        x[part] += np.einsum("ndk,nk->nd", spread[y[part]], rng.standard_t(4, (len(part), 4)))
    return model_set(network(128, 40), x, y, train * k, 20 * k)
