"""Measure what a model returns by running it, not by its name or its last layer's type."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from calib_serve.data import layout_advice
from calib_serve.errors import ModelError
from calib_serve.model.face import measured_kind
from calib_serve.scores import Outputs

__all__ = ["measured_outputs", "probe_inputs"]

_ROWS = 8
_NOISE = 1e-3  # how far one row's outputs may move, relative to the largest, as its batch changes


def probe_inputs(input_shape: tuple[int, ...], device: torch.device) -> Tensor:
    """The same few inputs every time: half in [0, 1], half around zero."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand((_ROWS // 2, *input_shape), generator=generator)
    centred = torch.randn((_ROWS // 2, *input_shape), generator=generator)
    return torch.cat([pixels, centred]).to(device)


def measured_outputs(
    network: Callable[[Tensor], Tensor], probe: Tensor, told: Outputs | None = None
) -> tuple[Outputs, int]:
    """What ``network`` returns, as ``told`` if that can be, and for how many classes.

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


def _run(network: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    try:
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
