"""Put an artifact into a torch model: one plain ``nn.Module``, proved on inputs where there are any.

It scripts, traces, exports and compiles as the model did; its state dict holds tensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.errors import FuseError, InputError, ModelError
from calib_serve.core.options.base import changed, check
from calib_serve.core.options.fuse import ModuleOptions
from calib_serve.fuse._decisions import decision_names, with_decisions
from calib_serve.fuse._kinds import Change, as_fitted, change_to_fitted, check_multilabel
from calib_serve.fuse._parity import Expected, Parity, expect, prove_own_scores
from calib_serve.fuse.torch._last_layer import features_of, linear_layer_name, replace_last
from calib_serve.fuse.torch._model import Example, device_and_dtype, evaluating
from calib_serve.fuse.torch._modules import ShiftInputs
from calib_serve.fuse.torch._scores import Numbers, ReturnedScores, locate_scores, numbers, scores_as_told
from calib_serve.fuse.torch._tails import (
    CalibrateScores,
    Everything,
    Logits,
    Probabilities,
    Unchanged,
    WithDecisions,
)
from calib_serve.fuse.torch._whole import assemble, lookup
from calib_serve.scores import LABELS, ONE_COLUMN, PROBABILITIES, Outputs, check_outputs, to_logits, to_probs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ModuleKeywords


Returns = Literal["probabilities", "logits", "all"]
_TAILS: dict[str, Callable[..., CalibrateScores]] = {
    "logits": Logits,
    "probabilities": Probabilities,
    "all": Everything,
}

_RATIO, _RATIO_OF_DOUBLE = 1e-5, 1e-9
"""Largest difference of probabilities for logits of size 1; rounding grows with their size."""

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
    the model's scores unchanged where no step acts on them; "all" (an ``All``). Of labels each is (n, L).
    What else the model returns is left out. ``decisions``: a mapping by name instead, of what ``returns``
    says and of what the artifact decides: "set", bool (n, K), whether each class is in the prediction set,
    "abstain", bool (n,), and "act", bool (n,), whether the contract lets it be acted on. Without it, they are
    not in the module.

    The model is run on ``example``. Its scores must be as wide as the artifact is, and of a kind that it was
    fitted on or that can be turned into that: where it was fitted on log-probabilities and that matters,
    logits are normalised first. What the calibrated module returns is compared with numpy. ``outputs`` says
    what the scores are where their numbers do not, ``output`` where they lie in a tuple, mapping or object,
    as in "logits" or "0". Without any example, ``outputs`` or what the artifact records is believed, and only
    the width is checked, when the module is called.

    ``last_linear`` names the layer that makes the logits, for an artifact with a Head and for ``fold``, which
    multiplies the logit maps into that layer; by default it is found by its shape. Tensors are shared with
    ``model``, but for the layer that changes. Returned in evaluation mode, on the model's device and dtype; a
    model of several inputs, or that returns several things, is to be scripted before, not after.

    Args:
        model: A module, scripted or not.
        artifact: The calibration that was fitted on this model's scores.
        options: A ``ModuleOptions``; keywords replace its fields.
        example: One input with a batch, a tuple of inputs, or a mapping of them by name; by default it is
            made from the artifact's ``model.input_shape``.
        **keywords: Fields of ``ModuleOptions``: ``decisions``, ``fold``, ``last_linear``, ``output``,
            ``outputs``, ``returns``.

    Raises:
        FuseError: Where a check or the comparison fails.
        ModelError: Where the model refuses the example or returns no such scores.
        InputError: For wrong options.

    >>> halved = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)
    >>> calibrated(nn.Identity(), halved, returns="logits")(torch.tensor([[2.0, 0.0]])).tolist()
    [[1.0, 0.0]]
    """
    asked = changed(options or ModuleOptions(), keywords, calibrated)
    shown = Example.of_shape(model, artifact) if example is None else Example.of(example)
    return fused(model, artifact, asked, shown).whole


@dataclass(frozen=True, eq=False)
class Fusion:
    """``whole`` is ``model`` with the artifact inside; ``parity`` is None where there was no example.

    ``layer`` is the last linear layer where it was changed, ``own_scores`` how many of the fit's own scores
    got the fit's own probabilities, and how far they were apart; ``left_out``: see ``TorchReport``.
    """

    whole: nn.Module
    model: nn.Module
    artifact: Artifact
    returns: Returns
    scores: ReturnedScores
    change: Change
    layer: str | None
    left_out: tuple[str, ...]
    own_scores: tuple[int, float] = (0, 0.0)
    parity: Parity | None = None

    def prove(self, whole: nn.Module, model: nn.Module, example: Example) -> Parity:
        """Compare ``whole`` with ``model`` calibrated in numpy, or copies of both on another device."""
        artifact, path = self.artifact, self.scores.path
        moved = example.shifted(artifact.input_shift)

        def scores_of(network: nn.Module) -> Tensor:
            scores: Tensor = lookup(moved.run(network), path)
            return scores

        scores = scores_of(model)
        if artifact.head is not None and self.layer is not None:
            logits: Any = artifact.head(features_of(model, self.layer, scores_of))
        else:
            logits = as_fitted(to_logits(numbers(scores), self.scores.outputs), self.change)
        expected = _expect(logits, artifact, scores.dtype, relayered=self.layer is not None)
        returned = example.run(whole)
        found = {}
        if names := decision_names(artifact):
            found = {name: returned[name].cpu().numpy() for name in names}
            shown = returned["logits" if self.returns == "logits" else "probabilities"]
        else:
            shown = returned[1] if self.returns == "all" else returned
        try:
            probs = numbers(shown) if self._shown is None else to_probs(numbers(shown), self._shown)
            return expected.prove(
                probs,
                found,
                _REPORT,
                own=self.own_scores,
                engine=f"torch {torch.__version__}",
                device=str(scores.device),
            )
        except FuseError:
            # Dropout that is left on moves scores from run to run, and would look like a wrong calibration.
            apart = float((scores_of(model).double() - scores.double()).abs().max())
            if not apart <= expected.tolerance:
                raise FuseError(
                    f"one input's scores move by {apart:.2g} between runs: the model is in training mode "
                    "(dropout or batch statistics are on); call model.eval() before exporting it"
                ) from None
            raise

    def response_of(self, inputs: NDArray[np.float32]) -> NDArray[Any] | None:
        """The logits (n, K) of ``model`` for inputs (n, ...); None where it takes other inputs."""
        scores = self.scores
        made = torch.from_numpy(inputs).to(scores.device, device_and_dtype(self.model)[1])
        try:
            found = lookup(Example((made,)).run(self.model), scores.path)
        except ModelError:
            return None
        return to_logits(numbers(found), scores.outputs)

    @property
    def _shown(self) -> Outputs | None:
        """The kind that ``whole`` returns in place of probabilities; None where it returns probabilities."""
        own = self.scores.outputs
        if self.returns != "logits":
            return None
        if isinstance(self.whole.tail, Unchanged):
            return own
        return "logit" if own in ONE_COLUMN else "label_logits" if own in LABELS else "logits"


def fused(model: nn.Module, artifact: Artifact, asked: ModuleOptions, example: Example | None) -> Fusion:
    """Fuse as ``calibrated`` does, and return the fused model with its parity."""
    check_outputs(asked.outputs)
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
        returned = example.shifted(artifact.input_shift).run(model)
        scores = locate_scores(returned, artifact, asked.output, asked.outputs, example.samples)
    held = f"the model's outputs are {scores.outputs}"
    check_multilabel(artifact, scores.outputs, held)
    change = change_to_fitted(artifact, scores.outputs, held)
    acting, left = with_decisions(
        artifact, wanted=asked.decisions, option="--decisions (decisions=) returns them, too"
    )
    # A map that changes nothing would still round, and keep a layer from being folded.
    maps = tuple(m for m in artifact.logit_maps if not m.is_nothing)
    folded = maps if asked.fold else ()
    layered = artifact.head is not None or bool(folded)
    check(layered or asked.last_linear is None, "last_linear", "is changed by a new head or fold, not here")
    if artifact.head is not None or asked.fold:
        _check_layer(scores.outputs, change, folded)
    layer, changed = None, model
    extra: list[nn.Module] = []
    if layered:
        features = None if artifact.head is None else artifact.head.weights[0].shape[1]
        layer = linear_layer_name(model, features, artifact.classes, asked.last_linear)
        changed, extra = replace_last(model, layer, artifact.head, folded)
    tail_of = _TAILS[asked.returns]
    if asked.returns == "logits" and not artifact.output_steps and scores.outputs in PROBABILITIES:
        tail_of = Unchanged
    if decision_names(acting):
        tail_of = partial(WithDecisions, asked.returns)
    tail = tail_of(() if asked.fold else maps, artifact, scores.dtype, scores.outputs, change)
    tail = tail.to(scores.device).eval()
    # Folded maps act inside the model, which the fit's own scores do not pass.
    own_scores = (0, 0.0) if folded else _check_examples(tail, artifact, scores.device)
    shift = artifact.input_shift
    whole = assemble(
        nn.Identity() if shift is None or shift.is_nothing else ShiftInputs(shift).to(scores.device),
        evaluating(changed),
        nn.Sequential(*extra).eval(),
        tail,
        scores.path,
    )
    fusion = Fusion(whole, model, acting, asked.returns, scores, change, layer, left, own_scores)
    if example is None:
        return fusion
    return replace(fusion, parity=fusion.prove(whole, model, example))


def _check_layer(outputs: Outputs, change: Change, folded: tuple[LogitMap, ...]) -> None:
    if outputs not in ("logits", "label_logits"):
        raise FuseError(
            f"the model returns {outputs}: its last linear layer does not make what is calibrated"
        )
    if folded and (change != "none" or any(m.on == "log_probs" for m in folded)):
        raise FuseError("a map on log-probabilities cannot be folded into a layer; leave --fold (fold=) off")


def _expect(logits: Numbers, artifact: Artifact, dtype: torch.dtype, *, relayered: bool) -> Expected:
    """Calibrate logits (n, K) in numpy; ``relayered``: weights of the model itself were changed."""
    ratio = _RATIO_OF_DOUBLE if dtype == torch.float64 else _RATIO
    # These add rounding, whose probabilities are rounded once, at the end.
    half = 2e-3 if dtype in (torch.float16, torch.bfloat16) else 0.0
    if relayered:  # the model rounds what becomes of the new weights, before any table
        return expect(artifact, logits, ratio + half)
    return expect(artifact, logits, ratio, rounding=half)


def _check_examples(tail: nn.Module, artifact: Artifact, device: torch.device) -> tuple[int, float]:
    """Prove that ``tail`` maps the fit's own scores to the fit's probabilities; return count and gap."""
    wide = torch.float64 if tail.wide else torch.float32

    def run(logits: NDArray[np.float64]) -> tuple[Numbers, dict[str, Any]]:
        with torch.no_grad():
            z = torch.tensor(logits, dtype=wide, device=device)
            return numbers(tail.probabilities(tail.maps(z))), {}  # type: ignore[operator]

    # Decisions are left to the inputs: a tail makes them of a model's scores alone.
    probs_alone = replace(artifact, sets=None, abstain=None, contract=None)
    damaged = "the artifact is damaged, or of another version: fit it again"
    return prove_own_scores(probs_alone, _RATIO, run, damaged)
