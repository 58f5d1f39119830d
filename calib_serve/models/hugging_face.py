"""Classifiers of Hugging Face transformers, from a folder that ``save_pretrained`` wrote.

Nothing that the folder brings is run or unpickled. Texts become numbers (n, planes, length), padded with -1:
plane 0 holds token ids, plane 1, where the tokenizer makes them, the types of tokens. The module makes an
attention mask of the padding and takes off what a batch does not need; its answers to padded batches are
proved equal to those to single texts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calib_serve.core.errors import ModelError
from calib_serve.models.hugging_face_folder import Folder, local, read_folder, transformers
from calib_serve.models.tokenizer import PADDING, read_words
from calib_serve.models.torch_classifier import TorchClassifier, from_module
from calib_serve.scores import Outputs

_INSIDE = "network."


def load_folder(
    path: str | Path,
    *,
    input_shape: tuple[int, ...] | None = None,
    last_linear: str | None = None,
    device: str | torch.device | None = None,
    batch_size: int = 256,
    outputs: Outputs | None = None,
) -> TorchClassifier:
    """Return the classifier in a folder of ``save_pretrained``, in float32 and evaluation mode.

    ``input_shape``: of one input as ``data_of`` makes it; ``last_linear`` is a layer's name in the model
    itself; the others are those of ``from_module``. One that takes texts has no gradient by its inputs,
    which are whole numbers. Raises ModelError for a folder that ``read_folder`` refuses, for weights that
    lack a layer, and where padding changes what the model answers.
    """
    folder = read_folder(Path(path), outputs)
    if outputs not in (None, folder.returns) and getattr(folder.config, "problem_type", None):
        raise ModelError(
            f"{path} is of {folder.config.problem_type} (problem_type in config.json), its outputs are "
            f"{folder.returns}, not {outputs}; leave out --outputs"
        )
    network = _network(folder)
    if folder.takes == "texts":
        words = read_words(folder)
        known = (getattr(folder.config, "pad_token_id", None), words.tokenizer.pad_token_id)
        padding = next((int(one) for one in known if one is not None), 0)
        module: nn.Module = _OfTexts(network, words.planes, padding)
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
        outputs=folder.returns if folder.returns == "logit" else outputs or folder.returns,
        fingerprint=folder.fingerprint,
        source=folder.path.resolve().name,
        probe=probe,
        input_dtype="int64" if folder.takes == "texts" else "float32",
        of_texts=folder.takes == "texts",
        device=device,
        batch_size=batch_size,
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
    if not moved <= 1e-3 * differ + 1e-5 * float(alone.abs().max()):
        raise ModelError(
            f"padding on the {side} changes what the model of {folder.path} answers: logits move by up to "
            f"{moved:.2g} as a text's batch holds longer ones, so there is no one confidence to calibrate"
        )
