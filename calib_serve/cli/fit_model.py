"""``calib-serve fit --model M --data D``: fits that need the deployed model, not its logits alone."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact
    from calib_serve.data import Dataset
    from calib_serve.model import Classifier

__all__ = ["fit_on_model"]

_MODEL_OPTIONS = ("weights", "input_shape", "last_linear", "device", "batch_size", "mixed_precision")
_CLAMPING = ("neural-clamping", "neural-clamping-efficient")


def fit_on_model(
    model: str,
    data: str,
    *,
    split: str | None,
    method: str,
    options: dict[str, Any],
    seed: int,
    quiet: bool,
    eval_split: str | None = None,
) -> Artifact:
    """Fit ``method`` to a deployed model and its calibration data.

    ``options`` are the method's own and those of ``load_model``: weights, input_shape (by default the
    data's), last_linear, device, batch_size, mixed_precision. ``checkpoints`` is a folder for logits,
    features and the state of a fit, where a killed one finds its way again. ``masked-head`` trains on
    the split named by the option ``train_split`` and steers by ``split``. An output method is fitted
    to the model's logits; ``auto`` chooses one, and Neural Clamping instead where that gains on
    held-out folds. Under torchrun the ranks share the passes over the data, and the first one returns.
    """
    from calib_serve.data import load_data
    from calib_serve.model import load_model
    from calib_serve.model.cache import CachedClassifier
    from calib_serve.model.ranks import join, rank_device

    samples = load_data(data, split=split)
    held_out = None if eval_split is None else load_data(data, split=eval_split)
    of_model = {name: options.pop(name) for name in _MODEL_OPTIONS if name in options}
    of_model["input_shape"] = tuple(of_model.get("input_shape", samples.inputs.shape[1:]))
    of_model.setdefault("device", rank_device())
    if of_model.get("last_linear") is not None:
        of_model["last_linear"] = str(of_model["last_linear"])  # a layer may well be called 5
    loaded = load_model(model, **of_model)
    if "checkpoints" in options:
        loaded = CachedClassifier(loaded, Path(str(options["checkpoints"])))
        if method not in (*_CLAMPING[:1], "masked-head"):
            del options["checkpoints"]  # nothing else takes so long once logits are at hand
    classifier = join(loaded)
    for part in (samples, held_out):
        if part is not None:
            part.check(classifier.input_shape, classifier.classes)
    if method in _CLAMPING:
        artifact = _clamped(method, classifier, samples, options=options, seed=seed, quiet=quiet)
    elif method == "masked-head":
        artifact = _masked(classifier, samples, data, options=options, seed=seed, quiet=quiet)
    elif method == "auto" and classifier.differentiable:
        artifact = _best(classifier, samples, options=options, seed=seed, quiet=quiet)
    else:
        artifact = _output(method, classifier, samples, options=options, seed=seed, quiet=quiet)
    if held_out is not None:
        artifact = _measured(artifact, classifier, held_out, str(eval_split), seed)
    _only_first_rank()
    return artifact


def _clamped(
    method: str, classifier: Classifier, samples: Dataset, *, options: dict[str, Any], seed: int, quiet: bool
) -> Artifact:
    from calib_serve.fit import clamping

    efficient = method == "neural-clamping-efficient"
    fit: Callable[..., Artifact] = (
        clamping.fit_neural_clamping_efficient if efficient else clamping.fit_neural_clamping
    )
    if not efficient:
        options["seed"] = seed
        if options.get("gamma") == "paper":
            options |= {"gamma": clamping.GAMMAS, "judge": "calibration-ece"}
        if options.pop("schedule", "ours") == "paper":
            options["solver"] = clamping.PaperSchedule(seed=seed)
    _refuse_unknown(method, fit, options, hidden=("classifier", "inputs", "labels", "progress", "solver"))
    with _progress(method, quiet=quiet) as progress:
        return fit(
            classifier,
            samples.inputs,
            samples.labels,
            class_names=samples.class_names,
            progress=progress,
            **options,
        )


def _masked(
    classifier: Classifier, samples: Dataset, data: str, *, options: dict[str, Any], seed: int, quiet: bool
) -> Artifact:
    from calib_serve.data import load_data
    from calib_serve.fit.masked import PAPER, fit_masked_head

    train_split = options.pop("train_split", None)
    train = samples if train_split is None else load_data(data, split=train_split)
    train.check(classifier.input_shape, classifier.classes)
    reading = options.pop("reading", "expected")
    if reading not in ("expected", "paper"):
        raise InputError(f"reading must be expected or paper, got {reading!r}")
    if reading == "paper":
        options["masking"] = PAPER
    hidden = ("features", "labels", "held_features", "held_labels", "progress", "model", "masking")
    _refuse_unknown("masked-head", fit_masked_head, options, hidden=hidden, more=("train_split", "reading"))
    with _progress("features", quiet=quiet) as progress:
        features = classifier.features(train.inputs, progress=progress)
        held: tuple[Any, ...] = ()
        if train_split is not None:
            held = (classifier.features(samples.inputs, progress=progress), samples.labels)
    with _progress("masked-head", quiet=quiet) as progress:
        return fit_masked_head(
            features,
            train.labels,
            *held,
            classes=classifier.classes,
            model=classifier.facts(),
            class_names=samples.class_names,
            seed=seed,
            progress=progress,
            **options,
        )


def _best(
    classifier: Classifier, samples: Dataset, *, options: dict[str, Any], seed: int, quiet: bool
) -> Artifact:
    """The output method chosen on all samples, or Neural Clamping where it gains on held-out folds."""
    from calib_serve.cli.fit import fit_output
    from calib_serve.fit.output import fit_by_name
    from calib_serve.workflows.model_choice import fit_best

    chosen = fit_output(
        "auto",
        classifier.logits(samples.inputs),
        samples.labels,
        class_names=samples.class_names,
        options=dict(options),
        seed=seed,
        quiet=quiet,
    )
    selection = chosen.fit["selection"]
    with _progress("neural-clamping beside it", quiet=quiet) as progress:
        best = fit_best(
            classifier,
            samples.inputs,
            samples.labels,
            lambda logits, labels: fit_by_name(selection["chosen"], logits, labels, seed=seed),
            seed=seed,
            progress=progress,
        )
    return replace(
        best,
        fit={**best.fit, "selection": selection},
        before=chosen.before,
        after=chosen.after if best.method == chosen.method else {},
        class_names=samples.class_names,
    )


def _output(
    method: str, classifier: Classifier, samples: Dataset, *, options: dict[str, Any], seed: int, quiet: bool
) -> Artifact:
    from calib_serve.cli.fit import fit_output

    with _progress("logits", quiet=quiet) as progress:
        logits = classifier.logits(samples.inputs, progress=progress)
    artifact = fit_output(
        method,
        logits,
        samples.labels,
        class_names=samples.class_names,
        options=options,
        seed=seed,
        quiet=quiet,
    )
    return replace(artifact, model=classifier.facts())


def _measured(
    artifact: Artifact, classifier: Classifier, held_out: Dataset, split: str, seed: int
) -> Artifact:
    """The artifact with its metrics, before and after, on a split that nothing was fitted to."""
    from calib_serve.cli.fit import with_metrics

    shift, head = artifact.input_shift, artifact.head
    z = classifier.logits(held_out.inputs)
    if head is not None:
        mapped = head(classifier.features(held_out.inputs, shift=shift))
    else:
        mapped = z if shift is None else classifier.logits(held_out.inputs, shift=shift)
    return with_metrics(artifact, z, artifact.probs(mapped), held_out.labels, split=split, seed=seed)


def _refuse_unknown(
    method: str,
    fit: Callable[..., Any],
    options: dict[str, Any],
    *,
    hidden: tuple[str, ...],
    more: tuple[str, ...] = (),
) -> None:
    known = [name for name in inspect.signature(fit).parameters if name not in hidden]
    unknown = sorted(set(options) - set(known) - {"solver", "masking"})
    if unknown:
        also = ", ".join((*known, *more, *_MODEL_OPTIONS))
        raise InputError(f"{method} has no option {', '.join(unknown)}; it has {also}")


@contextmanager
def _progress(name: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr that follows (done, total)."""
    from rich.console import Console
    from rich.progress import Progress

    silent = quiet or os.environ.get("RANK", "0") != "0"
    with Progress(console=Console(stderr=True), transient=True, disable=silent) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _only_first_rank() -> None:
    """Ends every process but torchrun's first: all hold the same artifact, and one writes it."""
    import typer

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    import torch.distributed as dist

    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank != 0:
        raise typer.Exit(0)
