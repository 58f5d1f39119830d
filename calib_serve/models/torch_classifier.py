"""A classifier on torch: TorchScript, an exported program, or a module of your own.

Its last linear layer is found by measurement: forward hooks do not fire inside a loaded TorchScript file,
and names are not reliable. But in every kind of torch module a weight can be replaced: with an identity
matrix in place of a candidate's weight and zeros in place of its bias, the model returns that layer's input.
It is the last linear layer if those features, times the old weight plus the old bias, are the model's
outputs.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calib_serve.artifact import Head, InputShift, ModelFacts
from calib_serve.core.errors import InputError, ModelError
from calib_serve.models.classifier import (
    NO_SHIFT,
    Floats,
    Loss,
    Progress,
    batches,
    finite_logits,
    measured_kind,
    width,
)
from calib_serve.models.dataset import layout_advice
from calib_serve.scores import LABELS, LEAST, ONE_COLUMN, PROBABILITIES, Outputs

_TOLERANCE = 1e-4  # relative to the largest logit; the same sums in another order


@dataclass(frozen=True, eq=False)
class LastLinear:
    """``name`` of the layer, its weight and bias, and ``body``: the model that stops before it."""

    name: str
    head: Head
    body: nn.Module


def frozen_copy(network: nn.Module) -> nn.Module:
    """A copy whose weights do not require gradients, so that only inputs do."""
    # Without no_grad the copy of a script module's weights would be part of a graph; and copying
    # an exported program warns of torch's own internals.
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        copied = copy.deepcopy(network)
    for parameter in copied.parameters():
        parameter.requires_grad_(False)
    return copied


def find_last_linear(
    network: nn.Module, probe: Tensor, outputs: Outputs, *, name: str | None = None
) -> LastLinear:
    """The layer whose product is the model's logits; ``name`` restricts the search to one layer.

    Raises ModelError, which lists what was tried.
    """
    if outputs in (*ONE_COLUMN, *LABELS):
        raise ModelError(f"the model returns {outputs}, and a new head makes a logit for each class")
    if outputs != "logits":
        raise ModelError(
            f"the model returns {outputs}: a softmax follows its last linear layer; "
            "export it without the softmax to reach its features"
        )
    with torch.no_grad():
        logits = network(probe)
        tried = _candidates(network, int(logits.shape[1]), name)
        for candidate in reversed(tried):
            found = _proved(network, candidate, probe, logits)
            if found:
                return found
    if name is not None and not tried:
        raise ModelError(f"{name!r} is not a linear layer with {logits.shape[1]} outputs; {_named(network)}")
    raise ModelError(
        f"no linear layer makes the model's {logits.shape[1]} logits (tried: {', '.join(tried) or 'none'}); "
        "its output must be the last linear layer's product, with nothing after it, "
        f"and its weights must be in the file (not frozen); {_named(network)}"
    )


def _candidates(network: nn.Module, classes: int, name: str | None) -> list[str]:
    names = [
        parameter.removesuffix("weight").removesuffix(".")
        for parameter, value in network.named_parameters()
        if parameter.rpartition(".")[2] == "weight" and value.ndim == 2 and value.shape[0] == classes
    ]
    wanted = None if name is None else name.removesuffix(".weight")
    return [n for n in names if wanted in (None, n)]


def _named(network: nn.Module) -> str:
    layers = [n.removesuffix(".weight") for n, p in network.named_parameters() if p.ndim == 2]
    return f"its matrices are: {', '.join(layers) or 'none'}"


def _proved(network: nn.Module, name: str, probe: Tensor, logits: Tensor) -> LastLinear | None:
    body = frozen_copy(network)
    parameters = dict(body.named_parameters())
    dot = f"{name}." if name else ""
    weight, bias = parameters[f"{dot}weight"], parameters.get(f"{dot}bias")
    old_weight = weight.detach().clone()
    old_bias = logits.new_zeros(len(old_weight)) if bias is None else bias.detach().clone()
    # With I for W and 0 for b the layer hands on its input.
    weight.data = torch.eye(old_weight.shape[1], dtype=weight.dtype, device=weight.device)
    if bias is not None:
        bias.data = bias.new_zeros(old_weight.shape[1])
    try:
        features = body(probe)
        again = features @ old_weight.T + old_bias
    except (RuntimeError, ValueError, TypeError):
        return None  # the widened output does not fit what follows: not the last layer
    if again.shape != logits.shape:
        return None
    if not float((again - logits).abs().max()) <= _TOLERANCE * (1 + float(logits.abs().max())):
        return None
    return LastLinear(name, Head((old_weight.cpu().numpy(),), (old_bias.cpu().numpy(),)), body)


_ROWS = 8
_NOISE = 1e-3  # how far one row's outputs may move, relative to the largest, as its batch changes


def probe_inputs(input_shape: tuple[int, ...], device: torch.device, dtype: str) -> Tensor:
    """The same few inputs every time: half in [0, 1], half around zero; whole numbers are 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    if not dtype.startswith("float"):
        shape = (_ROWS, *input_shape)
        return torch.randint(0, 2, shape, generator=generator).to(device, getattr(torch, dtype))
    pixels = torch.rand((_ROWS // 2, *input_shape), generator=generator)
    centred = torch.randn((_ROWS // 2, *input_shape), generator=generator)
    return torch.cat([pixels, centred]).to(device)


def measured_outputs(
    network: Callable[[Tensor], Tensor], probe: Tensor, told: Outputs | None = None
) -> tuple[Outputs, int]:
    """Measure the kind of scores of ``network``, as ``told`` if possible, and the number of classes.

    Raises ModelError for a model that refuses the probe, does not return (n, K), or answers one
    input differently from run to run or from batch to batch: it is in training mode.
    """
    with torch.no_grad():
        out = _run(network, probe)
        again = _run(network, probe)
        alone = _run(network, probe[:1])
        last = _run(network, probe[_ROWS // 2 :])
    scale = float(out.abs().max()) + 1e-12
    drift = max(
        float((out - again).abs().max()),
        float((out[:1] - alone).abs().max()),
        float((out[_ROWS // 2 :] - last).abs().max()),
    )
    if not drift <= _NOISE * scale:
        raise ModelError(
            f"one input's outputs move by {drift:.2g} between runs or batches: the model is in training "
            "mode (dropout or batch statistics are on); call model.eval() before exporting it"
        )
    return measured_kind(out.double().cpu().numpy(), told)


@contextmanager
def _full_float32() -> Iterator[None]:
    """Convolve in float32 proper on a GPU too, whatever the process is set to."""
    # TF32, torch's default there, keeps 10 bits of 23. On an H200 it moved a ResNet-20's logits by 0.01,
    # and by half of _NOISE from batch to batch; without it they move by 1e-5, in 1.3 to 1.6 times the time.
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32 = before


def _run(network: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    try:
        with _full_float32():
            out = network(inputs)
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
    return out.detach().reshape(len(inputs), -1)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


_MIXED_TOLERANCE = 5e-3  # of a probability


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
        mixed_precision: Whether logits and features are computed in bfloat16.
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
    mixed_precision: bool = False
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
            mixed_precision=self.mixed_precision,
        )

    def logits(
        self, inputs: Floats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Logits (n, K); log-probabilities where the model ends in softmax.

        Args:
            inputs: (n, *input_shape).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        raw = self._stream(self.network, inputs, shift, progress, width(self.classes, self.outputs))
        return finite_logits(raw, self.outputs, f"these {len(inputs)} inputs")

    def features(
        self, inputs: Floats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Inputs (n, d) of the last linear layer.

        Args:
            inputs: (n, *input_shape).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        last = self._last()
        return self._stream(last.body, inputs, shift, progress, last.head.weights[0].shape[1])

    def input_gradient(
        self, inputs: Floats, loss: Loss, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """The summed loss's gradient (*input_shape) by one shift shared by all inputs, and the logits (n, K).

        Args:
            inputs: (n, *input_shape).
            loss: From logits (b, K) and their rows to losses (b,).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        self._refuse_shift()
        total = np.zeros(self.input_shape)
        logits = np.empty((len(inputs), self.classes), np.float32)
        delta = _delta(shift, self.input_shape, self.device)
        for rows, batch in batches(inputs, self.batch_size, self.input_shape, self.input_dtype):
            # One delta for all inputs: its gradient is the sum of theirs.
            delta.requires_grad_()
            x = _shifted(_tensor(batch, self.device), delta, shift)
            with _full_float32():
                z = self._differentiable(self.network(x))
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

    def _differentiable(self, out: Tensor) -> Tensor:
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
        inputs: Floats,
        shift: InputShift | None,
        progress: Progress | None,
        width: int,
    ) -> NDArray[np.float32]:
        if shift is not None:
            self._refuse_shift()
        out = np.empty((len(inputs), width), np.float32)
        delta = None if shift is None else _delta(shift, self.input_shape, self.device)
        with torch.inference_mode(), _full_float32(), _precision(self.device, self.mixed_precision):
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


def from_module(
    module: nn.Module,
    *,
    input_shape: tuple[int, ...],
    last_linear: str | None = None,
    device: str | torch.device | None = None,
    batch_size: int = 256,
    mixed_precision: bool = False,
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
        mixed_precision: Whether logits and features, never gradients, are computed in bfloat16; refused where
            a probability moves by more than 0.005.
        outputs: Kind of scores that it returns, where numbers do not show it, as of labels; None: measured.
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
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    # An exported program's mode is fixed and its flag meaningless; the probe measures it.
    if getattr(module, "training", False) and not isinstance(module, torch.fx.GraphModule):
        raise ModelError("the model is in training mode; call model.eval() before loading or exporting it")
    network = frozen_copy(module).to(where)
    shape = tuple(int(size) for size in input_shape)
    probe = probe_inputs(shape, where, input_dtype) if probe is None else probe.to(where)
    outputs, classes = measured_outputs(network, probe, outputs)
    if mixed_precision:
        _refuse_imprecision(network, probe, where)
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
        fingerprint or weights_fingerprint(network),
        source,
        where,
        batch_size,
        mixed_precision,
        input_dtype,
        of_texts,
    )


def weights_fingerprint(network: nn.Module) -> str:
    """The sha256 of a module's named weights, for a model without a file."""
    digest = hashlib.sha256()
    for name, value in network.state_dict().items():
        digest.update(f"{name}{value.dtype}{tuple(value.shape)};".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _precision(device: torch.device, mixed: bool) -> AbstractContextManager[None]:
    return torch.autocast(device.type, torch.bfloat16) if mixed else nullcontext()


def _refuse_imprecision(network: nn.Module, probe: Tensor, device: torch.device) -> None:
    with torch.no_grad(), _full_float32():
        exact = network(probe).float().softmax(dim=1)
        with _precision(device, mixed=True):
            mixed = network(probe).float().softmax(dim=1)
    moved = float((exact - mixed).abs().max())
    if not moved <= _MIXED_TOLERANCE:
        raise ModelError(
            f"mixed precision moves this model's probabilities by up to {moved:.3f}, more than "
            f"{_MIXED_TOLERANCE}; leave mixed_precision off"
        )


def _tensor(batch: Floats, device: torch.device) -> Tensor:
    # A memory map may be read-only, which torch warns of; a batch is small enough to copy.
    return torch.from_numpy(np.require(batch, requirements=["C", "W"])).to(device)


def _delta(shift: InputShift | None, shape: tuple[int, ...], device: torch.device) -> Tensor:
    value = np.zeros(shape, np.float32) if shift is None else shift.delta
    return torch.tensor(value, dtype=torch.float32, device=device)


def _shifted(x: Tensor, delta: Tensor, shift: InputShift | None) -> Tensor:
    moved = x + delta
    return moved if shift is None or shift.low is None else moved.clamp(shift.low, shift.high)
