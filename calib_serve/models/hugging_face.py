"""Classifiers of Hugging Face transformers, from a folder that ``save_pretrained`` wrote.

Nothing that the folder brings is run or unpickled. Texts become numbers (n, planes, length), padded with -1:
plane 0 holds token ids, plane 1, where the tokenizer makes them, the types of tokens. The module makes an
attention mask of the padding and takes off what a batch does not need; its answers to padded batches are
proved equal to those to single texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calib_serve.artifact import opened_picture
from calib_serve.core.errors import CalibServeError, InputError, MissingDependency, ModelError
from calib_serve.core.files import sha256
from calib_serve.models.dataset import Dataset, load_data
from calib_serve.models.labelled import LabelledRequests, LabelledTexts, read_requests, read_texts
from calib_serve.models.torch_classifier import TorchClassifier, from_module
from calib_serve.scores import LABELS, Outputs

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

    ``fingerprint``: a sha256 over the names and hashes of the files that make its answers.
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
        return len(self.names)


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


def read_folder(path: Path) -> Folder:
    """Read the folder's classifier; ModelError for another model, and for one whose code would have to run.

    Refused are heads other than of a sequence or image classifier, regression, weights in pickles, adapters
    beside the weights, and models with code of their own.
    """
    config = local("the configuration", path, transformers().AutoConfig.from_pretrained)
    _refuse_code_and_pickles(path, config)
    architecture = _architecture(path, config)
    (takes,) = (kind for head, kind in _HEADS.items() if head in architecture)
    names = _names(path, config)
    return Folder(
        path, config, architecture, takes, _returns(path, config, len(names)), names, _fingerprint(path)
    )


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


def _returns(path: Path, config: Any, classes: int) -> Outputs:
    kind = getattr(config, "problem_type", None)
    if kind == "regression" or (classes == 1 and kind != "multi_label_classification"):
        raise ModelError(
            f"{path} is a regression (num_labels {classes}, problem_type {kind}): it returns a number, not "
            "the chances of classes, and such have nothing to calibrate"
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


PADDING = -1
_TYPES = "token_type_ids"
_MADE = ("input_ids", "attention_mask", _TYPES)
_AT_ONCE = 1000  # texts
_UNLIMITED = 10**6  # tokens: a tokenizer that knows no limit says some 1e30


@dataclass(frozen=True)
class Words:
    """The tokenizer of a folder; ``limit``: the most tokens of a text, None where there is no limit."""

    tokenizer: Any
    limit: int | None
    planes: int

    def encode(self, given: LabelledTexts) -> tuple[list[NDArray[np.int32]], int]:
        """Each text as (planes, its length), and how many had to be truncated to the limit."""
        rows: list[NDArray[np.int32]] = []
        cut = 0
        for texts, pairs in _parts(given):
            found = self._tokens(texts, pairs)
            long = [i for i, ids in enumerate(found) if self.limit is not None and ids.shape[1] > self.limit]
            if long:
                cut += len(long)
                again = self._tokens(
                    [texts[i] for i in long], [pairs[i] for i in long] if pairs else (), self.limit
                )
                for i, ids in zip(long, again, strict=True):
                    found[i] = ids
            rows += found
        return rows, cut

    def padded(self, rows: Sequence[NDArray[np.int32]], length: int) -> NDArray[np.int32]:
        """Pad rows (planes, their lengths) to one array (n, planes, length), where the tokenizer pads."""
        out = np.full((len(rows), self.planes, length), PADDING, np.int32)
        left = self.tokenizer.padding_side == "left"
        for i, row in enumerate(rows):
            size = row.shape[1]
            out[i, :, slice(length - size, None) if left else slice(size)] = row
        return out

    def made_up(self) -> NDArray[np.int32]:
        """A few texts of random words and several lengths, (8, planes, length)."""
        rng = np.random.default_rng(0)
        special = set(self.tokenizer.all_special_ids)
        ids = [i for i in range(len(self.tokenizer)) if i not in special]
        drawn = [rng.choice(ids, size) for size in (1, 8, 3, 5, 2, 4, 1, 3)]
        texts = [" ".join(self.tokenizer.decode([int(i)]).strip() or "a" for i in row) for row in drawn]
        rows = self._tokens(texts, (), self.limit)
        return self.padded(rows, max(row.shape[1] for row in rows))

    def _tokens(
        self, texts: Sequence[str], pairs: Sequence[str], limit: int | None = None
    ) -> list[NDArray[np.int32]]:
        how: dict[str, Any] = {"truncation": True, "max_length": limit} if limit else {"truncation": False}
        made = self.tokenizer(
            list(texts), list(pairs) or None, padding=False, verbose=False, return_attention_mask=False, **how
        )
        names = (_MADE[0], _TYPES)[: self.planes]
        return [np.array([made[name][i] for name in names], np.int32) for i in range(len(texts))]


def read_words(folder: Folder) -> Words:
    """The folder's tokenizer; ModelError where there is none, or it is not the model's."""
    tokenizer = local("the tokenizer", folder.path, transformers().AutoTokenizer.from_pretrained)
    # Without its files the library makes one up, of special tokens alone.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ModelError(
            f"the tokenizer of {folder.path} knows no words: its files are missing; write them there with "
            "tokenizer.save_pretrained"
        )
    known = getattr(folder.config, "vocab_size", None)
    largest = max(tokenizer.get_vocab().values())
    if known is not None and largest >= known:
        raise ModelError(
            f"the tokenizer of {folder.path} makes ids up to {largest}, and the model has {known} words: it "
            "is not this model's"
        )
    if others := set(tokenizer.model_input_names) - set(_MADE):
        raise ModelError(
            f"the model takes {', '.join(sorted(others))} beside its texts, which texts do not say"
        )
    limits = [tokenizer.model_max_length, *_positions(folder)]
    known_limits = [int(limit) for limit in limits if limit < _UNLIMITED]
    planes = 1 + (_TYPES in tokenizer.model_input_names)
    return Words(tokenizer, min(known_limits, default=None), planes)


def _positions(folder: Folder) -> Iterator[int]:
    """Yield how many tokens the model has positions for; looked for in its layers, without weights."""
    said = getattr(folder.config, "max_position_embeddings", None)
    if isinstance(said, int):
        yield said
    with torch.device("meta"):
        empty = transformers().AutoModelForSequenceClassification.from_config(folder.config)
    for name, layer in empty.named_modules():
        if name.endswith("position_embeddings") and isinstance(layer, torch.nn.Embedding):
            # RoBERTa and its like count from the padding's id on.
            yield layer.num_embeddings - (0 if layer.padding_idx is None else layer.padding_idx + 1)


def _parts(given: LabelledTexts) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    for start in range(0, len(given), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        yield given.texts[rows], given.pairs[rows]


_INSIDE = "network."
_NOISE = 1e-3  # how far a text's logits may move as its batch is padded, relative to how far texts differ
_ROUNDING = 1e-5  # relative to the largest logit


def load_folder(
    path: str | Path,
    *,
    input_shape: tuple[int, ...] | None = None,
    last_linear: str | None = None,
    device: str | torch.device | None = None,
    batch_size: int = 256,
    mixed_precision: bool = False,
    outputs: Outputs | None = None,
) -> TorchClassifier:
    """Return the classifier in a folder of ``save_pretrained``, in float32 and evaluation mode.

    ``input_shape``: of one input as ``data_of`` makes it; ``last_linear`` is a layer's name in the model
    itself; the others are those of ``from_module``. One that takes texts has no gradient by its inputs,
    which are whole numbers. Raises ModelError for a folder that ``read_folder`` refuses, for weights that
    lack a layer, and where padding changes what the model answers.
    """
    folder = read_folder(Path(path))
    if outputs not in (None, folder.returns) and getattr(folder.config, "problem_type", None):
        raise ModelError(
            f"{path} is of {folder.config.problem_type} (problem_type in config.json), its outputs are "
            f"{folder.returns}, not {outputs}; leave out --outputs"
        )
    network = _network(folder)
    if folder.takes == "texts":
        words = read_words(folder)
        module: nn.Module = _OfTexts(network, words.planes, _padding_id(folder, words))
        probe = torch.from_numpy(words.made_up())
        _refuse_padding_that_counts(folder, module, probe, words.tokenizer.padding_side)
        shape = input_shape or (words.planes, words.limit or probe.shape[2])
    else:
        if network.main_input_name != "pixel_values":
            raise ModelError(
                f"{path} takes {network.main_input_name}, not pixel_values; that is not supported"
            )
        module, probe = _OfPictures(network), None
        if input_shape is None:
            raise ModelError(f"give input_shape, the channels, height and width of one picture, for {path}")
        shape = input_shape
    found = from_module(
        module.eval(),
        input_shape=shape,
        last_linear=None if last_linear is None else f"{_INSIDE}{last_linear}",
        outputs=outputs or folder.returns,
        fingerprint=folder.fingerprint,
        source=folder.path.resolve().name,
        probe=probe,
        input_dtype="int64" if folder.takes == "texts" else "float32",
        of_texts=folder.takes == "texts",
        device=device,
        batch_size=batch_size,
        mixed_precision=mixed_precision,
    )
    if found.classes != folder.classes:
        raise ModelError(f"{path} names {folder.classes} classes (id2label) and returns {found.classes}")
    if isinstance(found.last, str):
        return found
    return replace(found, last=replace(found.last, name=found.last.name.removeprefix(_INSIDE)))


class _OfTexts(nn.Module):
    """Token ids (b, planes, length), -1 where padded, to logits (b, K)."""

    def __init__(self, network: nn.Module, planes: int, padding_id: int) -> None:
        super().__init__()
        self.network, self.planes, self.padding_id = network, planes, padding_id

    def forward(self, x: Tensor) -> Tensor:
        there = x[:, 0] > PADDING
        needed = there.any(dim=0)  # a batch is as long as its longest text
        given = x[:, :, needed].long()
        there = there[:, needed]
        types = {} if self.planes == 1 else {"token_type_ids": given[:, 1].clamp_min(0)}
        ids = given[:, 0].masked_fill(~there, self.padding_id)
        logits: Tensor = self.network(input_ids=ids, attention_mask=there.long(), **types).logits
        return logits


class _OfPictures(nn.Module):
    """Pixels (b, channels, height, width) to logits (b, K)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(pixel_values=x).logits
        return logits


def _network(folder: Folder) -> Any:
    kind = "Sequence" if folder.takes == "texts" else "Image"
    load = getattr(transformers(), f"AutoModelFor{kind}Classification").from_pretrained
    as_saved = partial(load, use_safetensors=True, dtype=torch.float32, output_loading_info=True)
    network, told = local("the model", folder.path, as_saved)
    if type(network).__name__ != folder.architecture:
        raise ModelError(
            f"{folder.path} is a {folder.architecture}, and was loaded as {type(network).__name__}"
        )
    wrong = sorted(str(name) for keys in ("missing_keys", "mismatched_keys") for name in told[keys])
    if wrong:
        raise ModelError(
            f"the weights of {folder.path} lack {len(wrong)} tensors of a {folder.architecture}, such as "
            f"{', '.join(wrong[:3])}: they would be random"
        )
    return network.eval()


def _padding_id(folder: Folder, words: Words) -> int:
    known = (getattr(folder.config, "pad_token_id", None), words.tokenizer.pad_token_id)
    return next((int(one) for one in known if one is not None), 0)


def _refuse_padding_that_counts(folder: Folder, module: nn.Module, probe: Tensor, side: str) -> None:
    try:
        with torch.inference_mode():
            together = module(probe)
            alone = torch.cat([module(row[None]) for row in probe])
    except Exception as error:  # a model may raise anything
        raise ModelError(
            f"the model of {folder.path} refuses a batch of texts: {str(error)[:300]}"
        ) from error
    moved = float((together - alone).abs().max())
    differ = float((alone.amax(0) - alone.amin(0)).max())
    if not moved <= _NOISE * differ + _ROUNDING * float(alone.abs().max()):
        raise ModelError(
            f"padding on the {side} changes what the model of {folder.path} answers: logits move by up to "
            f"{moved:.2g} as a text's batch holds longer ones, so there is no one confidence to calibrate"
        )


_PICTURES = 64  # pictures
_PIXELS = "pixel_values"
_MAX_PIXELS = 89_478_485  # of one's own picture: what Pillow takes without a warning


def _prepared(folder: Folder, files: Sequence[Path]) -> NDArray[np.float32]:
    """Read files as the model's pipeline does: turned as EXIF says, made RGB, then processed.

    Raises InputError for a file that is no picture, ModelError where the folder has no image processor or
    the model takes more than pixels.
    """
    process = local("the image processor", folder.path, transformers().AutoImageProcessor.from_pretrained)
    parts: list[NDArray[np.float32]] = []
    for start in range(0, len(files), _PICTURES):
        made = process([_opened(path) for path in files[start : start + _PICTURES]], return_tensors="np")
        if set(made) != {_PIXELS}:
            raise ModelError(f"the model takes {', '.join(sorted(made))}, and pixels alone are supported")
        pixels = np.asarray(made[_PIXELS], np.float32)
        if pixels.ndim != 4 or (parts and pixels.shape[1:] != parts[0].shape[1:]):
            raise InputError(
                f"the image processor of {folder.path} makes pictures of several sizes, such as "
                f"{pixels.shape[1:]}; the model takes one"
            )
        parts.append(pixels)
    return np.concatenate(parts)


def _opened(path: Path) -> Any:
    try:
        with opened_picture(path, _MAX_PIXELS) as picture:
            from PIL import ImageOps  # noqa: PLC0415 - only pictures need it

            turned: Any = ImageOps.exif_transpose(picture)
            return turned.convert("RGB")
    except MissingDependency:
        raise
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, bomb errors and more
        raise InputError(f"cannot read the picture {path}: {error}") from error


def data_of(model: str | Path, data: str | Path, splits: Sequence[str | None]) -> list[Dataset]:
    """Each of ``splits`` (None: all) of ``data`` as the classifier in the folder ``model`` takes it.

    Of texts: a table that ``read_texts`` reads, made token ids by the folder's tokenizer, (n, planes, length)
    with -1 behind a text's end. Of pictures: files that ``read_requests`` lists, or arrays of ``load_data``,
    which are taken for pixels that its image processor made. Labels are found by id or by the names of
    id2label. ``remarks`` say how many texts had to be truncated. Raises InputError for data that cannot be
    read or have other labels, ModelError for a folder that cannot be loaded.
    """
    folder = read_folder(Path(model))
    if folder.takes == "texts":
        return _texts(folder, data, splits)
    return [_pictures(folder, data, split) for split in splits]


def _texts(folder: Folder, data: str | Path, splits: Sequence[str | None]) -> list[Dataset]:
    read = [read_texts(data, split) for split in splits]
    # Labels first: they are wrong more often than texts, and quick to look at.
    labels = [
        _labels(folder, LabelledRequests(one.source, one.labels, rows=np.empty((len(one), 0))))
        for one in read
    ]
    words = read_words(folder)
    encoded = [words.encode(one) for one in read]
    length = max(row.shape[1] for rows, _ in encoded for row in rows)
    return [
        Dataset(
            words.padded(rows, length), y, folder.names, remarks=_said(cut, len(rows), words.limit, split)
        )
        for (rows, cut), y, split in zip(encoded, labels, splits, strict=True)
    ]


def _said(cut: int, texts: int, limit: int | None, split: str | None) -> tuple[str, ...]:
    if not cut:
        return ()
    of = f" of split {split}" if split else ""
    return (
        f"{cut} of {texts} texts{of} were truncated to the model's {limit} tokens; it is calibrated for "
        "texts that are truncated so",
    )


def _pictures(folder: Folder, data: str | Path, split: str | None) -> Dataset:
    path = Path(data)
    if (path.is_dir() and not any(path.glob("*.npy"))) or path.suffix == ".csv":
        read = read_requests(data, split)
        labels = _labels(folder, read)
        return Dataset(_prepared(folder, read.files), labels, folder.names)
    arrays = load_data(data, split)
    if arrays.class_names and arrays.class_names != folder.names:
        raise InputError(
            f"{data} names its classes {', '.join(arrays.class_names[:3])} ..., the model "
            f"{', '.join(folder.names[:3])} ... (id2label): which is which is not known; leave "
            "class_names out where the ids are the model's"
        )
    return Dataset(arrays.inputs, arrays.labels, folder.names)


def _labels(folder: Folder, given: LabelledRequests) -> NDArray[np.intp]:
    known = [[name] for name in folder.names]
    if folder.returns in LABELS:
        return given.label_sets(folder.classes, known)
    for i, label in enumerate(given.labels):
        if not label.strip():
            raise InputError(f"{given.called(i)}: the label is missing; leave such rows out")
    return given.class_ids(folder.classes, known)
