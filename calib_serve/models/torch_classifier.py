"""A classifier on torch: TorchScript, an exported program, or a module of your own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calib_serve.artifact import Head, InputShift, ModelFacts
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import InputError, ModelError
from calib_serve.models.classifier import (
    NO_SHIFT,
    Loss,
    Progress,
    batches,
    finite_logits,
    kind_of_scores,
    width,
)
from calib_serve.models.input_shapes import layout_advice
from calib_serve.models.last_linear import LastLinear, find_last_linear, frozen_copy
from calib_serve.scores import LEAST, ONE_COLUMN, PROBABILITIES, MadeBy, Outputs, traced

_PROBED_ROWS = 8
_NOISE_OF_BATCHES = 1e-3
"""How far one row's outputs may move, relative to the largest, as its batch changes."""


def made_up_inputs(input_shape: tuple[int, ...], dtype: str) -> Tensor:
    """The same few inputs (8, ...) every time: half in [0, 1], half around zero; whole numbers are 0 or 1.

    Args:
        input_shape: Shape of one input.
        dtype: Their type, such as "int64"; all floats are made as float32.
    """
    generator = torch.Generator().manual_seed(0)
    if "float" not in dtype:
        shape = (_PROBED_ROWS, *input_shape)
        return torch.randint(0, 2, shape, generator=generator).to(getattr(torch, dtype))
    # A model of pixels and one of normalised inputs both meet numbers that they know.
    pixels = torch.rand((_PROBED_ROWS // 2, *input_shape), generator=generator)
    centred = torch.randn((_PROBED_ROWS // 2, *input_shape), generator=generator)
    return torch.cat([pixels, centred])


def _measured_outputs(
    network: Callable[[Tensor], Tensor], probe: Tensor, told: Outputs | None = None
) -> tuple[Outputs, int]:
    """Prove the kind of scores of ``network``, unless it was ``told``, and the number of classes.

    Raises ModelError for a model that refuses the probe, does not return (n, K), or answers one
    input differently from run to run or from batch to batch: it is in training mode.
    """
    with torch.no_grad():
        out, trace = _traced(network, probe)
        again = _run(network, probe)
        alone = _run(network, probe[:1])
        last = _run(network, probe[_PROBED_ROWS // 2 :])
    scale = float(out.abs().max()) + 1e-12
    drift = max(
        float((out - again).abs().max()),
        float((out[:1] - alone).abs().max()),
        float((out[_PROBED_ROWS // 2 :] - last).abs().max()),
    )
    if not drift <= _NOISE_OF_BATCHES * scale:
        raise ModelError(
            f"one input's outputs move by {drift:.2g} between runs or batches: the model is in training "
            "mode (dropout or batch statistics are on); call model.eval() before exporting it"
        )
    return kind_of_scores(out.double().cpu().numpy(), told, trace)


@contextmanager
def _full_float32() -> Iterator[None]:
    """Convolve in float32 proper on a GPU too, whatever the process is set to."""
    # TF32, torch's default there, keeps 10 bits of 23. On an H200 it moved a ResNet-20's logits by 0.01,
    # and by half of _NOISE_OF_BATCHES from batch to batch; without it they move by 1e-5, in 1.3 to 1.6
    # times the time.
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32 = before


def _run(network: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    return _traced(network, inputs)[0]


def _traced(network: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[Tensor, MadeBy]:
    """Scores (n, d) of a model, and what makes them."""
    try:
        with _full_float32():
            out, trace = traced(network, (inputs,))
    except Exception as error:  # a model may raise anything
        advice = layout_advice(inputs.shape[1:])
        said = f"; {advice}" if advice else ""
        raise ModelError(
            f"the model refuses inputs of shape {tuple(inputs.shape)}: {_last_line(error)}; "
            f"check the input's shape, and export with a batch dimension of any size{said}"
        ) from error
    if not isinstance(out, Tensor) or out.ndim not in (1, 2) or out.shape[0] != len(inputs):
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ModelError(f"a classifier returns one tensor (n, K), or (n, 1) of one logit, this one {got}")
    return out.detach().reshape(len(inputs), -1), trace.made_by(out)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


@dataclass(frozen=True, eq=False)
class TorchClassifier:
    """A ``Classifier`` made by ``load_model`` or ``from_module``.

    Args:
        network: Frozen module from (n, *input_shape) to (n, K).
        input_shape: Shape of one input.
        classes: Number of classes, K.
        outputs: Kind of scores that it returns.
        last: Last linear layer, or the reason why there is none to replace.
        fingerprint: SHA-256 of the file or weights.
        source: Where it came from.
        device: Device that it runs on.
        batch_size: Number of inputs of a batch.
        input_dtype: Type of the inputs; whole numbers have no gradient and cannot be shifted.
        of_texts: Whether inputs are of any length.
    """

    network: nn.Module
    input_shape: tuple[int, ...]
    classes: int
    outputs: Outputs
    last: LastLinear | str
    fingerprint: str
    source: str
    device: torch.device
    batch_size: int = 256
    input_dtype: str = "float32"
    of_texts: bool = False

    @property
    def differentiable(self) -> bool:
        """Whether there are input gradients: torch gives them, but for whole numbers."""
        return self.input_dtype.startswith("float")

    @property
    def head(self) -> Head:
        """The last linear layer."""
        return self._last().head

    def facts(self) -> ModelFacts:
        """Facts about the model for an artifact's manifest."""
        return ModelFacts(
            sha256=self.fingerprint,
            source=self.source,
            input_shape=None if self.of_texts else self.input_shape,
            input_dtype=self.input_dtype,
            outputs=self.outputs,
            last_linear=None if isinstance(self.last, str) else self.last.name,
        )

    def logits(
        self, inputs: AnyFloats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Logits (n, K); log-probabilities where the model ends in softmax."""
        raw = self._stream(self.network, inputs, shift, progress, width(self.classes, self.outputs))
        return finite_logits(raw, self.outputs, f"these {len(inputs)} inputs")

    def features(
        self, inputs: AnyFloats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Inputs (n, d) of the last linear layer."""
        last = self._last()
        return self._stream(last.body, inputs, shift, progress, last.head.weights[0].shape[1])

    def input_gradient(
        self,
        inputs: AnyFloats,
        loss: Loss,
        *,
        shift: InputShift | None = None,
        progress: Progress | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """The summed loss's gradient (*input_shape) by one shift of all inputs, and the logits (n, K)."""
        self._refuse_shift()
        total = np.zeros(self.input_shape)
        logits = np.empty((len(inputs), self.classes), np.float32)
        delta = _delta(shift, self.input_shape, self.device)
        for rows, batch in batches(inputs, self.batch_size, self.input_shape, self.input_dtype):
            # One delta for all inputs: its gradient is the sum of theirs.
            delta.requires_grad_()
            x = _shifted(_tensor(batch, self.device), delta, shift)
            with _full_float32():
                z = self._logits_of(self.network(x))
                (gradient,) = torch.autograd.grad(loss(z, rows).sum(), delta)
            # Sums over batches in float64: the result does not depend on how many there are.
            total += gradient.double().cpu().numpy()
            logits[rows] = z.detach().float().cpu().numpy()
            if progress:
                progress(rows.stop, len(inputs))
        if not (np.isfinite(total).all() and np.isfinite(logits).all()):
            raise ModelError("the model's gradient or logits are NaN or infinite; is its file intact?")
        return total, logits

    def _refuse_shift(self) -> None:
        if not self.differentiable:
            raise ModelError(NO_SHIFT)

    def _last(self) -> LastLinear:
        if isinstance(self.last, str):
            raise ModelError(self.last)
        return self.last

    def _logits_of(self, out: Tensor) -> Tensor:
        """Logits (b, K) of a batch's outputs, with their gradient."""
        if self.outputs in ONE_COLUMN:
            one = out.reshape(-1, 1)
            first = 1 - one if self.outputs == "probability" else torch.zeros_like(one)
            out = torch.cat([first, one], dim=1)
        if self.outputs in PROBABILITIES:
            exact = out if out.dtype == torch.float64 else out.float()
            return exact.clamp_min(LEAST).log()
        return out

    def _stream(
        self,
        network: Callable[[Tensor], Tensor],
        inputs: AnyFloats,
        shift: InputShift | None,
        progress: Progress | None,
        width: int,
    ) -> NDArray[np.float32]:
        if shift is not None:
            self._refuse_shift()
        out = np.empty((len(inputs), width), np.float32)
        delta = None if shift is None else _delta(shift, self.input_shape, self.device)
        with torch.inference_mode(), _full_float32():
            for rows, batch in batches(inputs, self.batch_size, self.input_shape, self.input_dtype):
                x = _tensor(batch, self.device)
                out[rows] = (
                    network(x if delta is None else _shifted(x, delta, shift))
                    .float()
                    .cpu()
                    .reshape(len(x), -1)
                    .numpy()
                )
                if progress:
                    progress(rows.stop, len(inputs))
        return out


def default_device(asked: str | torch.device | None) -> torch.device:
    """The device that was asked for, else a GPU where there is one."""
    return torch.device(asked or ("cuda" if torch.cuda.is_available() else "cpu"))


def from_module(
    module: nn.Module,
    *,
    input_shape: tuple[int, ...],
    last_linear: str | None = None,
    device: str | torch.device | None = None,
    batch_size: int = 256,
    outputs: Outputs | None = None,
    fingerprint: str | None = None,
    source: str = "module",
    probe: Tensor | None = None,
    input_dtype: str = "float32",
    of_texts: bool = False,
) -> TorchClassifier:
    """A classifier of any torch module that maps (n, *input_shape) to (n, K); the module is copied.

    Args:
        module: The module, in evaluation mode.
        input_shape: Shape of one input.
        last_linear: Name of the last linear layer; None: found by measurement.
        device: Device to run on; None: CUDA where there is one. Convolutions never run in TF32.
        batch_size: Number of inputs of a batch.
        outputs: Kind of scores that it returns, as of labels; None: as its last layer proves it.
        fingerprint: SHA-256 of its file; None: of its weights.
        source: Where it came from.
        probe: A few inputs (m, *input_shape) to measure on, where made-up numbers cannot be the model's.
        input_dtype: Type of the inputs, such as "int64" of ids.
        of_texts: Whether inputs are of any length, as ``load_folder`` makes them.

    Raises:
        InputError: Where the batch size is below 1.
        ModelError: Where it is in training mode, or no classifier of such inputs.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    where = default_device(device)
    # An exported program's mode is fixed and its flag meaningless; the probe measures it.
    if getattr(module, "training", False) and not isinstance(module, torch.fx.GraphModule):
        raise ModelError("the model is in training mode; call model.eval() before loading or exporting it")
    network = frozen_copy(module).to(where)
    shape = tuple(int(size) for size in input_shape)
    probe = (made_up_inputs(shape, input_dtype) if probe is None else probe).to(where)
    outputs, classes = _measured_outputs(network, probe, outputs)
    last: LastLinear | str
    try:
        with _full_float32():
            last = find_last_linear(network, probe, outputs, name=last_linear)
    except ModelError as error:
        if last_linear is not None:
            raise
        last = str(error)  # output calibrators do not need it; ``head`` and ``features`` raise this
    return TorchClassifier(
        network,
        shape,
        classes,
        outputs,
        last,
        fingerprint or _weights_fingerprint(network),
        source,
        where,
        batch_size,
        input_dtype,
        of_texts,
    )


def _weights_fingerprint(network: nn.Module) -> str:
    """The sha256 of a module's named weights, for a model without a file."""
    digest = hashlib.sha256()
    for name, value in network.state_dict().items():
        digest.update(f"{name}{value.dtype}{tuple(value.shape)};".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tensor(batch: AnyFloats, device: torch.device) -> Tensor:
    # A memory map may be read-only, which torch warns of; a batch is small enough to copy.
    return torch.from_numpy(np.require(batch, requirements=["C", "W"])).to(device)


def _delta(shift: InputShift | None, shape: tuple[int, ...], device: torch.device) -> Tensor:
    value = np.zeros(shape, np.float32) if shift is None else shift.delta
    return torch.tensor(value, dtype=torch.float32, device=device)


def _shifted(x: Tensor, delta: Tensor, shift: InputShift | None) -> Tensor:
    moved = x + delta
    return moved if shift is None or shift.low is None else moved.clamp(shift.low, shift.high)
