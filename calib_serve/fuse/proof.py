"""Proof, before a calibration goes into a model's file, that the file gives the scores that were fitted.

Exporters and converters are often wrong, and a calibration of other scores is none. The hash of the file that
the fit ran proves it; else the file's scores are compared with the fitted ones of the same rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.data_files import read_npz
from calib_serve.core.errors import FuseError, InputError, ModelError, OptionError
from calib_serve.core.options.data import ProofOptions
from calib_serve.fuse._kinds import NORMALISED
from calib_serve.fuse._parity import CLOSE, read_inputs
from calib_serve.scores import Scores, log_softmax, sigmoid, softmax

ROWS = 20
"""Rows that a comparison needs: what differs in one row of seven shows up in 95 of 100 of them."""

BATCH = 256
"""Rows that are run at once."""

PROOF = "calib_serve.proof"
"""The name of the proof in the metadata of a fused file."""

UNPROVEN = "unproven: nothing shows that the model gives the scores that were fitted"
BY_HASH = "by the hash of the model's file, which the fit ran"
ESTIMATORS = (".joblib", ".pkl", ".pickle", ".skops")


@dataclass(frozen=True, eq=False)
class Against:
    """Inputs and the fitted scores of the same rows.

    Args:
        artifact: The calibration.
        inputs: Arrays (n, ...) by name; where there is one, it may have any name.
        logits: The scores as logits (n, K).
    """

    artifact: Artifact
    inputs: Mapping[str, NDArray[Any]]
    logits: AnyFloats

    def __post_init__(self) -> None:
        if len(self.logits) < ROWS:
            raise InputError(
                f"the scores to compare with are of {len(self.logits)} rows, and at least {ROWS} are needed; "
                "give more with --against (against=)"
            )
        if self.rows([]).keys() != self.inputs.keys():
            sizes = {name: np.shape(array) for name, array in self.inputs.items()}
            raise InputError(f"{len(self.logits)} rows of scores, and inputs {sizes}; give both of one order")

    def taking(self, names: Collection[str]) -> Against:
        """These rows for a model whose inputs have other names; FuseError where it takes others.

        Args:
            names: Names of the model's inputs.
        """
        held = {name: array for name, array in self.inputs.items() if name in names}
        if len(names) == len(self.inputs) == 1:
            held = dict(zip(names, self.inputs.values(), strict=True))
        if not held:
            own = sorted(self.inputs)
            raise FuseError(f"the model takes {sorted(names)}, and is to be compared on {own}; name them so")
        return replace(self, inputs=held)

    def rows(self, rows: Any) -> dict[str, NDArray[Any]]:
        """Inputs of some rows.

        Args:
            rows: An index of arrays (n, ...).
        """
        n = len(self.logits)
        return {name: array[rows] for name, array in self.inputs.items() if array.shape[:1] == (n,)}

    def batches(self, size: int, run: Callable[[dict[str, NDArray[Any]]], AnyFloats]) -> AnyFloats:
        """Run a model on some rows at a time, and join what it gives.

        Args:
            size: Rows at once; the last ones are filled up.
            run: The model: inputs by name in, logits (size, K) out.
        """
        n = len(self.logits)
        parts = [run(self.rows(np.arange(i, i + size) % n)) for i in range(0, n, size)]
        return np.concatenate(parts)[:n]

    def prove(self, found: AnyFloats, what: object) -> str:
        """Compare a model's scores with the fitted ones, and return the proof in words.

        Args:
            found: Logits (n, K).
            what: The model, for messages.

        Raises:
            FuseError: Where more than rounding differs, in any row.
        """
        if found.shape != self.logits.shape:
            raise FuseError(f"{what} gives {found.shape} scores, and {self.logits.shape} were fitted")
        gaps = gaps_of(self.artifact, found, self.logits)
        wrong, row = ~(gaps <= CLOSE), int(np.argmax(np.where(np.isnan(gaps), np.inf, gaps)))
        if wrong.any():
            raise FuseError(
                f"{what} gives other scores than were fitted: {wrong.sum()} of {len(gaps)} rows "
                f"({wrong.mean():.1%}) differ by more than {CLOSE:g} of a probability, row {row} by "
                f"{gaps[row]:.2g}; export what was fitted in another way, or fit on this file's own scores "
                "(calib-serve fit --model)"
            )
        return f"{len(gaps)} rows of the fitted scores, {gaps[row]:.2g} apart at most, {CLOSE:g} allowed"


def gaps_of(artifact: Artifact, found: AnyFloats, logits: AnyFloats) -> NDArray[np.float64]:
    """The largest difference of a probability in each row (n,), of raw and of calibrated ones.

    Args:
        artifact: The calibration.
        found: Logits (n, K).
        logits: Logits (n, K) of the same rows.
    """
    normal = artifact.model.outputs in NORMALISED
    pairs = [log_softmax(z) if normal else np.asarray(z, np.float64) for z in (found, logits)]
    to_probs = [sigmoid if artifact.is_multilabel else softmax]
    if not artifact.model_steps:
        # A table of bins leaps at its edges, where rounding chooses: it is compared as it is fused.
        maps = artifact.only(*(step for step in artifact.output_steps if step is not artifact.table))
        to_probs.append(maps.at("").of_logits)
    gaps = [np.abs(made(pairs[0]) - made(pairs[1])).max(axis=1) for made in to_probs]
    return np.asarray(np.max(gaps, axis=0))


def required_proof(
    artifact: Artifact, digest: Callable[[], str], source: object, asked: ProofOptions, inputs: Any = None
) -> Against | str:
    """The rows to compare the model with, or the words for its file's proof, or for none.

    Args:
        artifact: The calibration.
        digest: Makes the hash of the model's files, or of an archive's, where there is one to compare with.
        source: The model, for messages.
        asked: The options.
        inputs: Inputs by name, or an npz of them.

    Raises:
        FuseError: Where nothing proves that the model gives the fitted scores.
    """
    fitted = artifact.model
    if asked.against is not None:
        return _given(artifact, asked.against, inputs)
    # What passes a handler's seam is not what its model's file returns.
    known = fitted.sha256 if fitted.seam is None else fitted.archive
    if known and digest() == known:
        return BY_HASH
    if asked.unproven:
        return UNPROVEN
    if artifact.kept is not None and inputs is not None:
        for array in (one for one in read_inputs(inputs).values() if one.ndim > 1):
            rows, logits = artifact.kept.matching(array)
            if len(rows) >= ROWS:
                return Against(artifact, {"inputs": rows}, logits)
    other = (
        f"was fitted for {fitted.source or fitted.sha256[:12]}" if fitted.sha256 else "knows no model file"
    )
    kept = "" if artifact.kept is None else "; or the inputs of the fit, of which it keeps rows, as --inputs"
    raise FuseError(
        f"the artifact {other}, and nothing shows that {source} gives the scores that were fitted: give some "
        "of them with their inputs, as --against FILE.npz (against=), or the fitted estimator and --inputs"
        f"{kept}; or fit on this file (calib-serve fit --model); or say --unproven (unproven=True)"
    )


def proof_in(path: Path) -> str:
    """What a fused file says that its proof was.

    Args:
        path: An .onnx, .pt2 or TorchScript file.

    Raises:
        ModelError: Where nothing was fused into the file.
    """
    found: str | None = None
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            name = next((name for name in file.namelist() if name.endswith(f"/extra/{PROOF}")), None)
            found = None if name is None else file.read(name).decode()
    elif path.suffix == ".onnx":
        model = import_module("onnx").load(path, load_external_data=False)
        found = {one.key: one.value for one in model.metadata_props}.get(PROOF)
    if found is None:
        raise ModelError(f"{path} is no file that a calibration was fused into")
    return found


def _given(artifact: Artifact, against: Any, inputs: Any) -> Against:
    feeds = read_inputs(inputs)
    schema = replace(artifact.schema, by=None)  # the maps of all sources act on the same scores
    if isinstance(against, tuple):
        given, scores = against
        feeds = dict(given) if isinstance(given, Mapping) else {"inputs": given}
    elif isinstance(against, (str, Path)) and Path(against).suffix not in ESTIMATORS:
        path = Path(against)
        scores = Scores.read(path, expected=schema, missing="none")
        if not feeds and path.suffix == ".npz":
            feeds = read_npz(path)[0]
            feeds = {"inputs": feeds["inputs"]} if "inputs" in feeds else _beside(feeds, len(scores))
    elif not feeds:
        raise OptionError("against", "is a model, which needs inputs: give --inputs FILE.npz (inputs=)")
    elif isinstance(against, (str, Path)):
        scores = _run_apart(Path(against), feeds, artifact)
    else:
        scores = scores_of_estimator(against, feeds, artifact.model.outputs, artifact.class_names)
    if not feeds:
        raise OptionError("against", "holds no inputs: save them beside the scores, or give --inputs")
    read = Scores.of(scores, expected=schema, missing=None if isinstance(scores, Scores) else "none")
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    return Against(artifact, arrays, np.asarray(artifact.accepted(read).logits, np.float64))


def _beside(arrays: Mapping[str, NDArray[Any]], rows: int) -> dict[str, NDArray[Any]]:
    """The arrays of as many rows as there are scores, of which the model takes those that it names."""
    found = {name: array for name, array in arrays.items() if array.shape[:1] == (rows,)}
    return found if len(found) > 1 else {}  # one alone are the scores


def _run_apart(path: Path, feeds: Mapping[str, NDArray[Any]], artifact: Artifact) -> NDArray[Any]:
    """Scores of an estimator's file, which is loaded in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "inputs.npz"), Path(folder, "scores.npz")
        texts = {
            name: array.astype(str) if array.dtype.kind == "O" else array for name, array in feeds.items()
        }
        np.savez(given, allow_pickle=False, **texts)
        words = [str(path.resolve()), str(given), str(made), artifact.model.outputs or "logits"]
        command = [sys.executable, "-m", "calib_serve.fuse.proof", *words, *artifact.class_names]
        # What is unpickled may import modules that lie here, as it could where it was written.
        paths = (str(Path(__file__).parents[2]), str(Path.cwd()), os.environ.get("PYTHONPATH", ""))
        patience = 600.0  # seconds in which it must load and answer
        how: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}}
        how |= {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": patience}
        try:
            ran = subprocess.run(command, check=False, **how)
        except subprocess.TimeoutExpired:
            raise FuseError(f"{path} did not answer within {patience:.0f} s; give fewer --inputs") from None
        if ran.returncode:
            last = (ran.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            raise FuseError(f"{path} could not be run on the inputs: {last[:300]}")
        return read_npz(made)[0]["scores"]


def scores_of_estimator(
    model: Any, feeds: Mapping[str, NDArray[Any]], outputs: str | None, names: tuple[str, ...] = ()
) -> NDArray[Any]:
    """Scores of a fitted scikit-learn estimator, of the kind ``outputs``, its classes in the order ``names``.

    Args:
        model: The estimator.
        feeds: One array, or the columns of a data frame by name.
        outputs: Kind of the scores that were fitted.
        names: Names of the classes, where the fit knows them.
    """
    if len(feeds) == 1:
        (x,) = feeds.values()
    else:
        from pandas import DataFrame  # noqa: PLC0415 - only an estimator of frames needs it

        x = DataFrame({name: np.reshape(column, -1) for name, column in feeds.items()})
    if hasattr(model, "best_threshold_"):
        raise InputError(
            f"{type(model).__name__} decides by a threshold of its own, which no file of its scores has: "
            "compare with its estimator_, and decide where the probabilities are used"
        )
    probabilities = outputs in ("probabilities", "probability", "log_probs", "label_probabilities")
    method = getattr(model, "predict_proba" if probabilities else "decision_function", None)
    if method is None:
        raise InputError(f"{outputs or 'logits'} were fitted, which {type(model).__name__} does not give")
    found = np.asarray(method(x))
    own = [str(name) for name in getattr(model, "classes_", ())]
    if found.ndim == 2 and own != list(names) and sorted(own) == sorted(names):
        found = found[:, [own.index(name) for name in names]]
    if outputs == "probability":
        return found[:, 1]
    return np.log(found) if outputs == "log_probs" else found


def _load_estimator(path: Path) -> Any:
    if path.suffix == ".skops":
        skops = import_module("skops.io")
        return skops.load(path, trusted=skops.get_untrusted_types(file=path))
    return import_module("joblib").load(path)  # which scikit-learn brings


if __name__ == "__main__":
    model_file, inputs_file, out, kind, *classes = sys.argv[1:]
    arrays = read_npz(Path(inputs_file))[0]
    np.savez(out, scores=scores_of_estimator(_load_estimator(Path(model_file)), arrays, kind, tuple(classes)))
