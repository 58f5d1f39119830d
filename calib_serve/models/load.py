"""Load a classifier from a model file, or from a factory and its weights."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import nn

from calib_serve.artifact import Preprocessing
from calib_serve.core.errors import InputError, ModelError
from calib_serve.core.files import import_object, open_regular, sha256_with
from calib_serve.models.classifier import GIVE_SHAPE, Classifier, check_sizes
from calib_serve.models.dataset import Dataset, load_data
from calib_serve.models.exported import batch_range, input_sizes, load_exported, module_on
from calib_serve.models.hugging_face import load_folder
from calib_serve.models.hugging_face_data import data_of
from calib_serve.models.hugging_face_folder import is_folder
from calib_serve.models.torch_classifier import default_device, from_module
from calib_serve.models.torchscript import is_torchscript, load_torchscript, warn_of_torchscript
from calib_serve.scores import Outputs

_OTHERS = {
    ".h5": "a Keras model",
    ".keras": "a Keras model",
    ".pb": "a TensorFlow model",
    ".tflite": "a TensorFlow Lite model",
    ".joblib": "a pickled estimator",
    ".pkl": "a pickle",
    ".pickle": "a pickle",
}
"""Files that people have, by their ending."""

_INSTEAD = "export it to ONNX, or write its logits and labels into a file (calib-serve fit, calibrate)"
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt")

Kind = Literal["onnx", "torchscript", "exported", "state_dict"]


def load_model(
    spec: str | Path,
    *,
    weights: str | Path | None = None,
    input_shape: tuple[int, ...] | None = None,
    last_linear: str | None = None,
    device: str | None = None,
    batch_size: int = 256,
    outputs: Outputs | None = None,
    output_name: str | None = None,
    custom_ops: str | Path | None = None,
) -> Classifier:
    """Load a classifier. Loading TorchScript or a factory runs its code: load trusted models only.

    Args:
        spec: A .pt2, ONNX or TorchScript file; a folder that Hugging Face's ``save_pretrained`` wrote, of a
            sequence or image classifier, of which safetensors and settings alone are read; or a factory,
            ``package.module:name`` or ``path/to/file.py:name``: a function without arguments that returns an
            ``nn.Module``.
        weights: A factory's .safetensors file, or a state_dict that ``torch.load`` reads with
            ``weights_only=True``; without it the factory has to return trained weights by itself, and one
            that makes others every time is refused.
        input_shape: One input's shape without the batch; .pt2 and ONNX files know it.
        last_linear: The layer that makes the logits; by default found by measurement.
        device: "cpu", "cuda" or "cuda:1"; by default a GPU if there is one.
        batch_size: Inputs at once.
        outputs: What the model returns, where neither its last layer nor sums of 1 prove it, as of labels.
        output_name: The output of an ONNX file that holds the scores, where several may; or a tensor inside.
        custom_ops: A library of an ONNX file's own operators, that onnxruntime loads and whose code it runs.

    Raises:
        ModelError: For a model that cannot be loaded or is no classifier.
    """
    path = Path(spec)
    if path.suffix != ".onnx" and (output_name or custom_ops):
        raise ModelError(
            f"{path} is no ONNX file, which alone has outputs by name and operators of a library; leave out "
            "--output-name (output_name=) and custom_ops"
        )
    options: dict[str, Any] = {
        "last_linear": last_linear,
        "device": device,
        "batch_size": batch_size,
        "outputs": outputs,
    }
    if weights is not None and path.exists():
        raise ModelError(f"{path} holds its own weights; give weights with a factory, package.module:name")
    if is_folder(path):
        return load_folder(path, input_shape=input_shape, **options)
    if not path.is_file():
        if ":" not in str(spec):
            if (path / "saved_model.pb").is_file():
                raise ModelError(f"{path} is a TensorFlow model, which is not read: {_INSTEAD}")
            raise ModelError(
                f"there is no model file {path}, and no folder with a config.json; a factory is written "
                "package.module:name"
            )
        if input_shape is None:
            raise ModelError(
                f"a factory does not say what its model takes: give input_shape for {spec} ({GIVE_SHAPE})"
            )
        options["input_shape"] = input_shape
        return _from_factory(str(spec), None if weights is None else Path(weights), options)
    kind = _kind(path)
    if kind == "onnx":
        from calib_serve.models.onnx_classifier import load_onnx, weight_files  # noqa: PLC0415 (needs the onnx extra)

        options |= {"output_name": output_name, "custom_ops": custom_ops}
        fingerprint = _file_fingerprint(path, weight_files(path))
        return load_onnx(path, fingerprint=fingerprint, input_shape=input_shape, **options)
    if kind == "state_dict":
        raise ModelError(
            f"{path} holds weights alone, or a pickled module, which is never unpickled here: name the "
            f"function that makes the network, with its state_dict() as weights (--model net.py:make "
            f"--weights {path.name}; weights=), or export it by torch.export (.pt2) or to ONNX"
        )
    read = _torchscript if kind == "torchscript" else _exported
    network, known = read(path, input_shape, options)
    options |= known if input_shape is None else {**known, "input_shape": input_shape}
    if "input_shape" not in options:
        raise ModelError(f"the file does not say what it takes: give input_shape for {path} ({GIVE_SHAPE})")
    return from_module(network, fingerprint=_file_fingerprint(path), source=path.name, **options)


def weights_remarks(spec: object, weights: str | Path | None) -> list[str]:
    """Remark on the weights of a factory that was loaded without a file of them.

    Args:
        spec: The model, as it was given.
        weights: File of its weights; None: none was given.
    """
    if weights is not None or not isinstance(spec, (str, Path)) or Path(spec).exists():
        return []
    return [
        f"{spec} has its weights from its own code, the same every time: they are trained only if it loads "
        "them there; others are given with --weights (weights=)"
    ]


def _file_fingerprint(path: Path, others: Iterable[str] = ()) -> str:
    """The sha256 of a file's bytes, and of the ``others`` beside it that hold its weights."""
    try:
        return sha256_with(path, others)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error}") from error


def _kind(path: Path) -> Kind:
    """The file's format, from its content; only for ONNX from its suffix."""
    if path.suffix == ".onnx":
        return "onnx"
    if path.suffix == ".safetensors":
        return "state_dict"
    if path.suffix in _OTHERS:
        raise ModelError(f"{path} is {_OTHERS[path.suffix]}, which is not read: {_INSTEAD}")
    if path.suffix == ".py":
        raise ModelError(f"{path} is a program: name its function that makes the network too, {path}:NAME")
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            pickled = file.read(1) == b"\x80"
        if path.suffix in _WEIGHTS and pickled:
            return "state_dict"  # as torch wrote them before it made archives
        raise ModelError(f"{path} is no .pt2, ONNX, TorchScript or weights file; was it cut off?")
    if is_torchscript(path):
        return "torchscript"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if path.suffix == ".pt2" or any(name.partition("/")[2].startswith("models/") for name in names):
        return "exported"
    return "state_dict"


def _torchscript(path: Path, *_: Any) -> tuple[nn.Module, dict[str, Any]]:
    warn_of_torchscript(path, stacklevel=4)
    return load_torchscript(path), {}


def _exported(
    path: Path, given: tuple[int, ...] | None, asked: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Any]]:
    """Load an exported program; return its module, and the facts of its one input and of its batches."""
    program = load_exported(path)
    if sizes := input_sizes(program):
        check_sizes(path, sizes, given)
    found: dict[str, Any] = {"batch_size": min(asked["batch_size"], batch_range(program)[1])}
    examples = program.example_inputs
    inputs: tuple[Any, ...] = tuple(examples[0]) if examples else ()
    if len(inputs) == 1 and isinstance(inputs[0], torch.Tensor):
        found["input_shape"] = tuple(inputs[0].shape[1:])
        if not inputs[0].is_floating_point():
            found["input_dtype"] = str(inputs[0].dtype).removeprefix("torch.")
    return module_on(program, default_device(asked["device"])), found


def _from_factory(spec: str, weights: Path | None, options: Mapping[str, Any]) -> Classifier:
    network = _made(spec)
    if weights is not None:
        _load_weights(network, weights)
    # Weights that differ from call to call were never trained.
    elif not _same_weights(network, _made(spec)):
        raise ModelError(
            f"{spec} makes other weights every time, so they are random, not trained: give the file of the "
            "trained ones (--weights, weights=)"
        )
    fingerprint = None if weights is None else _file_fingerprint(weights)
    return from_module(network.eval(), fingerprint=fingerprint, source=spec, **options)


def _made(spec: str) -> nn.Module:
    try:
        made = import_object(spec)()
    except Exception as error:  # the factory is foreign code
        raise ModelError(f"{spec} made no model: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise ModelError(f"{spec} must return an nn.Module, got {type(made).__name__}")
    return made


def _same_weights(first: nn.Module, second: nn.Module) -> bool:
    """Whether a factory made the same network twice: trained weights do not depend on chance."""
    one, other = first.state_dict(), second.state_dict()
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())


def _load_weights(network: nn.Module, path: Path) -> None:
    state: Any
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            # Unpickling anything else would run its code.
            with open_regular(path) as file:
                state = torch.load(file, map_location="cpu", weights_only=True)
        network.load_state_dict(state.get("state_dict", state))
    except Exception as error:  # torch.load raises errors of many types
        raise ModelError(f"cannot load the weights {path}: {error}") from error


def model_data(
    model: str | Path,
    data: str | Path,
    splits: Sequence[str | None],
    *,
    pictures: Preprocessing | None = None,
    outputs: Outputs | None = None,
) -> list[Dataset]:
    """Load each split as a model takes it; by its own tokenizer or image processor for a Hugging Face folder.

    Args:
        model: The model's file or folder.
        data: Data, as ``load_data`` takes them.
        splits: Names of the splits; None: data without splits.
        pictures: How pictures become inputs; refused for a Hugging Face folder, which says it itself.
        outputs: What the model returns, where its folder does not say it, as of one logit.

    Raises:
        InputError: Where the data cannot be read.
        ModelError: Where the folder cannot be loaded.
    """
    if not is_folder(model):
        return [load_data(data, split, pictures=pictures) for split in splits]
    if pictures is not None:
        raise InputError(
            f"the image processor in {model} says how pictures are prepared; leave out --pictures (pictures=)"
        )
    return data_of(model, data, splits, outputs=outputs)
