"""MaC-Cal, the masked head: a new bottleneck head, trained under random masks on frozen features (Ni 2025).

    model = load_model("model.pt2")
    artifact = fit_masked_head(
        model.features(train_images), train_labels, model.features(held_images), held_labels
    )

The paper infers with the unmasked weights and steers q by the training set. On features of images that
the network was trained on this makes calibration worse, so it is not the default: the default infers with
the expected weights (each masked weight times q) and steers q by accuracy minus confidence on held-out
samples, which measured better. ``PAPER`` holds the paper's settings, ``UNMASKED`` those of a head that is
trained without any mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_array
from calib_serve.artifact import Artifact, ModelFacts
from calib_serve.errors import FitError, InputError, ShapeError
from calib_serve.fit.checkpoint import Checkpoints
from calib_serve.fit.facts import complete, data_fingerprint
from calib_serve.fit.masked.training import Masking, Retention, Trained, train_masked
from calib_serve.fit.output import fit_by_name, options_of
from calib_serve.fit.samples import Samples
from calib_serve.model import Progress

Floats = NDArray[np.floating[Any]]


def fit_masked_head(
    features: Floats,
    labels: ArrayLike,
    held_features: Floats | None = None,
    held_labels: ArrayLike | None = None,
    *,
    classes: int | None = None,
    masking: Masking | None = None,
    held_share: float = 0.25,
    then: str | None = None,
    model: ModelFacts | Mapping[str, Any] | None = None,
    class_names: Sequence[str] = (),
    seed: int = 0,
    device: str | None = None,
    checkpoints: str | Path | None = None,
    progress: Progress | None = None,
) -> Artifact:
    """A new head for ``features`` (n, d) of the training set, with ``labels`` (n,) class ids.

    ``features`` may be (V, n, d): V augmented views, of which each epoch sees the next. Held-out features
    (m, d) and labels steer q, and the artifact's reference bins are theirs; without them ``held_share`` of
    the samples is held out. ``then``: an output method, such as "temperature", that is fitted behind the
    finished head to the held-out part. ``classes`` defaults to the number of class names or the largest label
    plus 1; ``model`` are the classifier's ``facts()``. ``checkpoints`` is a folder to resume a killed fit
    from. Raises InputError for one class, NaN, labels outside of the classes or a name that does not exist,
    FitError when training diverges or ``then`` has no optimum.
    """
    x, y = _checked(features, labels)
    if then is not None:
        options_of(then)  # refuses a name that does not exist before anything is trained
    if (held_features is None) != (held_labels is None):
        raise InputError("give held-out features and labels both, or neither")
    if held_features is None:
        kept, out = held_rows(len(y), held_share, seed)
        held = ((x if x.ndim == 2 else x[0])[out], y[out])  # of several views, the first one
        x, y = x[..., kept, :], y[kept]
    else:
        held = _checked(held_features, held_labels)
    if held[0].shape[-1] != x.shape[-1]:
        raise ShapeError(f"features are {x.shape[-1]} wide, the held-out ones {held[0].shape[-1]}")
    k = classes or len(class_names) or int(max(y.max(), held[1].max())) + 1
    if max(y.max(), held[1].max()) >= k:
        raise InputError(f"labels must lie in 0..{k - 1}, got {max(y.max(), held[1].max())}")
    how = masking or Masking().suited(len(y))
    trained = train_masked(
        x,
        y,
        k,
        held_out=held,
        masking=how,
        seed=seed,
        device=device,
        checkpoints=None if checkpoints is None else Checkpoints(Path(checkpoints)),
        progress=progress,
    )
    logits = trained.head(np.asarray(held[0], np.float32))
    collapsed = bool((logits == logits[0]).all())
    if collapsed and then is not None:
        raise FitError(f"{_COLLAPSED}, so nothing can be fitted behind it; {_INSTEAD}")
    behind = None if then is None else fit_by_name(then, logits, held[1], seed=seed)
    said: dict[str, Any] = {} if behind is None else {"then": then, "behind": dict(behind.fit)}
    if collapsed:
        said |= {"remarks": [f"{_COLLAPSED}; {_INSTEAD}"]}
    return complete(
        [trained.head, *(() if behind is None else behind.steps)],
        Samples.of(logits, held[1], outputs="logits"),
        method="masked-head",
        fit=_facts(trained, how, seed) | said,
        data={"trained_on": len(y), "features_sha256": data_fingerprint(np.asarray(x), y)},
        model=model,
        class_names=class_names,
        packages=("torch",),
    )


_COLLAPSED = "the training collapsed: the new head answers every held-out sample alike"
_INSTEAD = "give it more training samples, or fit tuned-head, which starts from the deployed one"


def _facts(trained: Trained, how: Masking, seed: int) -> dict[str, Any]:
    last = trained.epochs[-1]
    return {
        "hidden": how.hidden,
        "inference": how.inference,
        "draw": how.draw,
        "masked_gradient": how.masked_gradient,
        "loss": getattr(how.loss, "__name__", type(how.loss).__name__),
        "epochs": how.epochs,
        "batch": how.batch,
        "rate": how.rate,
        "schedule": how.schedule,
        "momentum": how.momentum,
        "decay": how.decay,
        "scaled": how.scaled,
        "adapt": how.retention.adapt,
        "gamma": how.retention.gamma,
        "eta": list(how.retention.eta),
        "bounds": list(how.retention.bounds),
        "warm_up": how.retention.warm_up,
        "q": trained.q,
        "q_by_epoch": [round(epoch.q, 6) for epoch in trained.epochs],
        "training_loss": last.loss,
        "feedback_accuracy": last.accuracy,
        "feedback_confidence": last.confidence,
        "seed": seed,
    }


def _checked(features: Floats, labels: ArrayLike | None) -> tuple[Floats, NDArray[np.intp]]:
    """Checked features (n, d) or (V, n, d) and class ids (n,)."""
    x, y = as_array(features, "features"), as_array(labels, "labels")
    if x.ndim not in (2, 3) or x.dtype.kind != "f" or x.shape[-2] == 0:
        raise ShapeError(f"features must be floats (n, d) or (views, n, d), got {x.dtype} {x.shape}")
    if y.shape != (x.shape[-2],):
        raise ShapeError(f"labels must be ({x.shape[-2]},), got {y.shape}; pass class ids, not one-hot")
    if y.dtype.kind not in "iu" or y.min() < 0:
        raise InputError(f"labels must be class ids of 0 and above, got {y.dtype} from {y.min()}")
    if (y == y[0]).all():
        raise InputError(f"all {len(y)} samples are of class {y[0]}; train on every class that is served")
    if not np.isfinite(x).all():
        raise InputError("features hold NaN or infinity; fix or drop such inputs before fitting")
    return x, y.astype(np.intp)


def held_rows(n: int, share: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows that are trained on, and a random ``share`` of the n rows that is held out."""
    m = round(n * share)
    if not 0 < m < n:
        raise InputError(f"held_share {share} of {n} samples leaves a part empty")
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[m:]), np.sort(order[:m])


PAPER = Masking(
    inference="unmasked",
    retention=Retention(adapt="training", gamma=0.95, bounds=(0.0, 1.0), warm_up=0.0),
    schedule="constant",
    scaled=False,
)
"""MaC-Cal as it is printed (algorithm 1, section 5.1).

q starts at .5 and moves after every epoch within [0, 1] (eq. 12), its step bounded by .1 falling to .001
(eq. 13); 40 epochs of batches of 128 at a rate of .1, momentum .9, decay 5e-4; features as they come,
weights as they are at the end. The paper leaves open: gamma (.95 is ours), the bottleneck's width (128) and
activation (ReLU), a mask per batch (algorithm 1) or per epoch (its text), the start (torch's).
"""

UNMASKED = Masking(inference="unmasked", retention=Retention(first=1.0, adapt=None))
"""The control: the same head, trained in the same way as the default, and no weight ever masked."""

READINGS: Mapping[str, Masking] = MappingProxyType(
    {"expected": Masking(), "paper": PAPER, "no-mask": UNMASKED}
)
"""By the names that ``reading`` takes; "expected" is the default."""


def reading(name: str, n: int) -> Masking:
    """The settings called ``name`` for n training samples.

    "paper" stays as printed; the others train longer where samples are few. InputError for another name.
    """
    if name not in READINGS:
        raise InputError(f"reading must be one of {', '.join(READINGS)}, got {name!r}")
    return PAPER if name == "paper" else READINGS[name].suited(n)
