"""Put an artifact into a torch model: one plain ``nn.Module``, proved on inputs where there are any.

It scripts, traces, exports and compiles as the model did; its state dict holds tensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FuseError, InputError
from calib_serve.core.options.base import changed, check
from calib_serve.core.options.fuse import Made, ModuleOptions
from calib_serve.fuse._decisions import decision_names, has_logits, with_decisions
from calib_serve.fuse._kinds import Change, as_fitted, as_probs, change_to_fitted, check_multilabel
from calib_serve.fuse._parity import ROUNDING, Parity, check_examples, expect
from calib_serve.fuse.proof import BATCH, Against
from calib_serve.fuse.torch._last_layer import features_of, linear_layer_name, replace_last
from calib_serve.fuse.torch._model import Example, evaluating
from calib_serve.fuse.torch._modules import ShiftInputs
from calib_serve.fuse.torch._places import in_places
from calib_serve.fuse.torch._scores import (
    ReturnedScores,
    locate_scores,
    numbers,
    rows_of,
    scores_as_told,
)
from calib_serve.fuse.torch._tails import (
    CalibrateScores,
    Everything,
    Logits,
    Probabilities,
    Unchanged,
)
from calib_serve.fuse.torch._whole import assemble, lookup
from calib_serve.models import is_scripted, warn_of_torchscript
from calib_serve.scores import (
    LABELS,
    ONE_COLUMN,
    PROBABILITIES,
    Outputs,
    check_outputs,
    to_logits,
    traced,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ModuleKeywords


_TAILS: dict[str, Callable[..., CalibrateScores]] = {
    "logits": Logits,
    "probabilities": Probabilities,
    "all": Everything,
}

_REPORT = (
    "the calibrated model is not used: is the model in evaluation mode? "
    "Give typical inputs with --inputs (inputs= or example=), or report this model"
)


def calibrated(
    model: nn.Module,
    artifact: Artifact,
    options: ModuleOptions | None = None,
    *,
    example: Tensor | tuple[Any, ...] | Mapping[str, Any] | None = None,
    **keywords: Unpack[ModuleKeywords],
) -> nn.Module:
    """Put the artifact into a model, which itself is not changed, and return it as one module.

    ``returns``: "probabilities" (n, K), (n, 2) of a binary model with one column; "logits" in the shape of
    the model's own scores, one logit for one, log-probabilities where a table or mixture leaves no logits,
    the model's scores unchanged where no step acts on them; "all" is a mapping by name of "logits" (n, K),
    "probabilities" (n, K), "confidence" (n,), "predicted" (n,), "bin" (n,), and of what the artifact decides:
    "set", bool (n, K), whether each class is in the prediction set, "abstain", bool (n,), "act", bool (n,),
    whether the contract lets it be acted on, and "decision", int64 (n,), the id of the action. Of labels each
    is (n, L). What else the model returns is left out.

    The model is run on ``example``. Its scores must be as wide as the artifact is, and of a kind that it was
    fitted on or that can be turned into that: where it was fitted on log-probabilities and that matters,
    logits are normalised first. What the calibrated module returns is compared with numpy. ``outputs`` says
    what the scores are where their numbers do not, ``output`` where they lie in a tuple, mapping or object,
    as in "logits" or "0". Without any example, ``outputs`` or what the artifact records is believed, and only
    the width is checked, when the module is called.

    ``last_linear`` names the layer that makes the logits, for an artifact with a Head; by default it is found
    by its shape. Tensors are shared with ``model``, but for the layer that changes. Returned in evaluation
    mode, on the model's device and dtype; a model of several inputs, or that returns several things, is to be
    scripted before, not after.

    Args:
        model: A module, scripted or not.
        artifact: The calibration that was fitted on this model's scores.
        options: A ``ModuleOptions``; keywords replace its fields.
        example: One input with a batch, a tuple of inputs, or a mapping of them by name; by default it is
            made from the artifact's ``model.input_shape``.
        **keywords: Fields of ``ModuleOptions``: ``last_linear``, ``output``, ``outputs``, ``returns``.

    Raises:
        FuseError: Where a check or the comparison fails.
        ModelError: Where the model refuses the example or returns no such scores.
        InputError: For wrong options.

    >>> from calib_serve.artifact import LogitMap
    >>> halved = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)
    >>> calibrated(nn.Identity(), halved, returns="logits")(torch.tensor([[2.0, 0.0]])).tolist()
    [[1.0, 0.0]]
    """
    asked = changed(options or ModuleOptions(), keywords, calibrated)
    if is_scripted(model):
        warn_of_torchscript("the model")
    shown = Example.of_shape(model, artifact) if example is None else Example.of(example)
    return fused(model, artifact, asked, shown).whole


@dataclass(frozen=True, eq=False)
class Fusion:
    """``whole`` is ``model`` with the artifact inside, which returns scores of the kind ``shown``.

    ``layer`` is the last linear layer where a new head took its place; ``left_out``: see ``TorchReport``.
    """

    whole: nn.Module
    model: nn.Module
    artifact: Artifact
    returns: Made
    shown: Outputs
    scores: ReturnedScores
    change: Change
    layer: str | None
    left_out: tuple[str, ...]

    def prove(self, whole: nn.Module, model: nn.Module, example: Example) -> Parity:
        """Compare ``whole`` with ``model`` calibrated in numpy, or what was read of the files of both."""
        artifact, path = self.artifact, self.scores.path
        moved = example.shifted(artifact.input_shift)

        def scores_of(network: nn.Module) -> Tensor:
            scores: Tensor = rows_of(lookup(moved.run(network), path), artifact)
            return scores

        scores = scores_of(model)
        if artifact.head is not None and self.layer is not None:
            logits: Any = artifact.head(features_of(model, self.layer, scores_of))
        else:
            logits = as_fitted(to_logits(numbers(scores), self.scores.outputs), self.change)
        # A model in half precision rounds what becomes of new weights; what is behind it is in float32.
        own = self.layer is not None or scores.dtype == torch.float64
        ratio = ROUNDING[str(scores.dtype).removeprefix("torch.") if own else "float32"]
        expected = expect(artifact, logits, ratio)
        returned, names = example.run(whole), decision_names(artifact)
        made = {n: rows_of(returned[n], artifact) if n == "set" else returned[n].flatten() for n in names}
        found = {name: one.cpu().numpy() for name, one in made.items()}
        shown = rows_of(returned["probabilities"] if self.returns == "all" else returned, artifact)
        try:
            probs, engine = as_probs(numbers(shown), self.shown), f"torch {torch.__version__}"
            parity = expected.prove(probs, found, _REPORT, engine=engine, device=str(scores.device))
            kind: Outputs = "logits" if self.returns == "all" else self.shown
            if has_logits(artifact) and kind not in PROBABILITIES:
                shown = rows_of(returned["logits"] if self.returns == "all" else returned, artifact)
                expected.prove_logits(numbers(shown.reshape(len(shown), -1)), kind, _REPORT)
            return parity
        except FuseError:
            # Dropout that is left on moves scores from run to run, and would look like a wrong calibration.
            apart = float((scores_of(model).double() - scores.double()).abs().max())
            if not apart <= expected.tolerance:
                raise FuseError(
                    f"one input's scores move by {apart:.2g} between runs: the model is in training mode "
                    "(dropout or batch statistics are on); call model.eval() before exporting it"
                ) from None
            raise

    def raw_logits(self, against: Against) -> NDArray[Any]:
        """The logits (n, K) of ``model`` for the rows to compare it with."""
        scores = self.scores

        def run(rows: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
            returned = Example.read(rows, self.model).run(self.model)
            found = numbers(rows_of(lookup(returned, scores.path), self.artifact))
            return np.asarray(to_logits(found, scores.outputs), np.float64)

        return against.batches(BATCH, run)


def fused(model: nn.Module, artifact: Artifact, asked: ModuleOptions, example: Example | None) -> Fusion:
    """Fuse as ``calibrated`` does, and return the fused model with what its proof needs."""
    check_outputs(asked.outputs)
    check_examples(artifact)
    axis = artifact.model.class_axis
    if artifact.source_maps is not None:
        raise FuseError("a torch module does not know its rows' sources: take the maps of one (Artifact.at)")
    if axis is not None and artifact.model_steps:
        raise FuseError("the artifact changes the model itself, which is not supported for tokens or pixels")
    if not isinstance(model, nn.Module):
        raise InputError(
            f"the model must be an nn.Module, got {type(model).__name__}; "
            "calibrate the module or exported program that it was compiled from, then compile"
        )
    # Dropout and batch statistics would make each run another model.
    model = evaluating(model)
    if example is None:
        scores = scores_as_told(model, artifact, asked.output, asked.outputs)
    else:
        ran = example.shifted(artifact.input_shift).run(lambda *args, **named: traced(model, args, named))
        scores = locate_scores(ran, artifact, asked.output, asked.outputs, example.samples)
    held = f"the model's outputs are {scores.outputs}"
    check_multilabel(artifact, scores.outputs, held)
    change = change_to_fitted(artifact, scores.outputs, held)
    acting, left = with_decisions(
        artifact, wanted=asked.returns == "all", option="--returns all (returns=) has them, too"
    )
    # A map that changes nothing would still round.
    maps = tuple(m for m in artifact.logit_maps if not m.is_nothing)
    head, layer, changed = artifact.head, None, model
    check(head is not None or asked.last_linear is None, "last_linear", "is changed by a new head, not here")
    extra: list[nn.Module] = []
    if head is not None:
        if scores.outputs not in ("logits", "label_logits"):
            raise FuseError(
                f"the model returns {scores.outputs}: its last linear layer does not make what is calibrated"
            )
        layer = linear_layer_name(model, head, asked.last_linear)
        changed, extra = replace_last(model, layer, head)
    tail_of, own = _TAILS[asked.returns], scores.outputs
    shown: Outputs = "probabilities"
    if asked.returns == "logits":
        shown = "logit" if own in ONE_COLUMN else "label_logits" if own in LABELS else "logits"
        if not artifact.output_steps and own in PROBABILITIES:
            tail_of, shown = Unchanged, own
    # No type of 16 bits holds calibrated probabilities, nor the edges of bins.
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    tail = tail_of(maps, acting, dtype, scores.outputs, change).to(scores.device).eval()
    shift = artifact.input_shift
    whole = assemble(
        nn.Identity() if shift is None or shift.is_nothing else ShiftInputs(shift).to(scores.device),
        evaluating(changed),
        nn.Sequential(*extra).eval(),
        in_places(tail, axis).eval(),
        scores.path,
    )
    fusion = Fusion(whole, model, acting, asked.returns, shown, scores, change, layer, left)
    if example is not None:
        fusion.prove(whole, model, example)
    return fusion
