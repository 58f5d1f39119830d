"""A folder that ``save_pretrained`` wrote: its classifier's kind, inputs and classes.

Nothing that it brings is run or unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from calib_serve.core.errors import CalibServeError, MissingDependency, ModelError
from calib_serve.core.files import sha256
from calib_serve.scores import Outputs

_CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
_HASHED = (".json", ".txt", ".model", ".safetensors")
_HEADS: dict[str, Literal["texts", "pictures"]] = {
    "ForSequenceClassification": "texts",
    "ForImageClassification": "pictures",
}
T = TypeVar("T")


@dataclass(frozen=True)
class Folder:
    """A classifier's ``config``, its inputs, the kind that it ``returns``, and the names of its K classes.

    Of one logit there are no names. ``fingerprint``: a sha256 over the names and hashes of the files that
    make its answers.
    """

    path: Path
    config: Any
    architecture: str
    takes: Literal["texts", "pictures"]
    returns: Outputs
    names: tuple[str, ...]
    fingerprint: str

    @property
    def classes(self) -> int:
        """The number K of classes, or of labels."""
        return len(self.names) or 2


def is_folder(model: str | Path) -> bool:
    """Whether ``model`` is a folder with a config.json, as ``save_pretrained`` writes it."""
    return (Path(model) / _CONFIG).is_file()


def transformers() -> Any:
    """Import the library; MissingDependency where it is not installed."""
    try:
        import transformers as found  # noqa: PLC0415 - an extra that few need
    except ImportError as error:
        raise MissingDependency("transformers", "hugging-face") from error
    return found


def local(what: str, path: Path, load: Callable[..., T]) -> T:
    """Call ``load``, a ``from_pretrained``, on a folder: on its files alone, and without its code.

    Raises ModelError where it cannot.
    """
    try:
        with _quiet():
            # Neither a download nor code of the folder's own: what is calibrated is what lies there.
            return load(str(path), local_files_only=True, trust_remote_code=False)
    except CalibServeError:
        raise
    except Exception as error:  # from_pretrained raises errors of many types
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = lines[0][:300] if lines else type(error).__name__
        raise ModelError(f"cannot load {what} of {path}: {said}") from error


def read_folder(path: Path, outputs: Outputs | None = None) -> Folder:
    """Read the folder's classifier; ModelError for another model, and for one whose code would have to run.

    Refused are heads other than of a sequence or image classifier, regression, weights in pickles, adapters
    beside the weights, and models with code of their own. One score is a regression, unless ``outputs`` says
    that it is a logit, as of a cross-encoder.
    """
    config = local("the configuration", path, transformers().AutoConfig.from_pretrained)
    _refuse_code_and_pickles(path, config)
    architecture = _architecture(path, config)
    (takes,) = (kind for head, kind in _HEADS.items() if head in architecture)
    names = _names(path, config)
    returns = _returns(path, config, len(names), outputs)
    # The one name of a binary model's event is no name of its two classes.
    names = () if returns == "logit" else names
    return Folder(path, config, architecture, takes, returns, names, _fingerprint(path))


def _refuse_code_and_pickles(path: Path, config: Any) -> None:
    if getattr(config, "auto_map", None):
        raise ModelError(
            f"{path} brings code of its own (auto_map in {_CONFIG}), which is never run here; compute its "
            "logits where you trust it, and fit on them without --model"
        )
    if (path / "adapter_config.json").exists():
        raise ModelError(
            f"{path} holds an adapter; merge it into the model (merge_and_unload), and save that"
        )
    if not any((path / name).is_file() for name in _WEIGHTS):
        pickled = sorted(found.name for pattern in _PICKLED for found in path.glob(pattern))
        held = f"it holds {', '.join(pickled[:3])}, which is never unpickled here; " if pickled else ""
        raise ModelError(
            f"{path} has no {_WEIGHTS[0]}: {held}load the model where you trust it, and save it again with "
            "save_pretrained, which writes safetensors"
        )


def _architecture(path: Path, config: Any) -> str:
    found = getattr(config, "architectures", None) or []
    if len(found) != 1 or not any(head in str(found[0]) for head in _HEADS):
        raise ModelError(
            f"{path} is of {', '.join(map(str, found)) or 'an unknown architecture'} ({_CONFIG}); a "
            f"classifier's ends in {' or '.join(_HEADS)}: another would get a head of random weights"
        )
    return str(found[0])


def _names(path: Path, config: Any) -> tuple[str, ...]:
    known = dict(getattr(config, "id2label", None) or {})
    if not known or set(known) != set(range(len(known))):
        raise ModelError(
            f"id2label in {path / _CONFIG} must name the classes 0 to K - 1, it has {list(known)[:5]}"
        )
    return tuple(str(known[k]) for k in range(len(known)))


def _returns(path: Path, config: Any, classes: int, said: Outputs | None) -> Outputs:
    kind = getattr(config, "problem_type", None)
    if classes == 1 and kind in (None, "single_label_classification") and said in ("logit", "logits"):
        return "logit"
    if kind == "regression" or (classes == 1 and kind != "multi_label_classification"):
        raise ModelError(
            f"{path} is a regression (num_labels {classes}, problem_type {kind}): it returns a number, not "
            "the chances of classes, and such have nothing to calibrate; if it is the logit of a class, say "
            "--outputs logit (outputs=)"
        )
    return "label_logits" if kind == "multi_label_classification" else "logits"


def _fingerprint(path: Path) -> str:
    files = sorted(found for found in path.iterdir() if found.suffix in _HASHED and found.is_file())
    try:
        lines = [f"{sha256(found)}  {found.name}\n" for found in files]
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library from showing bars, and from logging but errors."""
    logging: Any = transformers().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
