"""A calibrated model as one plain ``nn.Module``, proved on inputs where there are any.

It scripts, traces, exports and compiles as the model did; its state dict holds tensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.errors import FuseError, InputError, ModelError
from calib_serve.fuse.decisions import check_decidable, decided, undecided
from calib_serve.fuse.torch._model import Example, evaluating, features_of, find_linear, home, replace_last
from calib_serve.fuse.torch._modules import (
    Change,
    Deciding,
    Everything,
    Logits,
    Probabilities,
    Shift,
    Tail,
    Unchanged,
    Where,
    assemble,
    lookup,
)
from calib_serve.fuse.torch.kinds import as_fitted, change_to_fitted, kind_of
from calib_serve.fuse.torch.proof import Parity, check_examples, compare, expect, numbers
from calib_serve.options.base import changed
from calib_serve.options.fuse import ModuleOptions
from calib_serve.scores import LABELS, ONE_COLUMN, PROBABILITIES, Outputs, check_outputs, to_logits
from calib_serve.seam import Form, find_scores

__all__ = ["Fusion", "Returns", "calibrated", "fused"]

Returns = Literal["probabilities", "logits", "all"]
_TAILS: dict[str, Callable[..., Tail]] = {
    "logits": Logits,
    "probabilities": Probabilities,
    "all": Everything,
}


def calibrated(
    model: nn.Module,
    artifact: Artifact,
    options: ModuleOptions | None = None,
    *,
    example: Tensor | tuple[Any, ...] | Mapping[str, Any] | None = None,
    **given: Any,
) -> nn.Module:
    """``model`` with the artifact inside it; the model itself is not changed.

    ``returns``: "probabilities" (n, K), (n, 2) of a binary model with one column; "logits" in the shape of
    the model's own scores, one logit for one, log-probabilities where a table or mixture leaves no logits,
    the model's scores unchanged where no step acts on them; "all" (an ``All``). Of labels each is (n, L).
    What else the model returns is left out. ``decisions``: a mapping by name instead, of what ``returns``
    says and of what the artifact decides: "set", bool (n, K), whether each class is in the prediction set,
    "abstain", bool (n,), and "act", bool (n,), whether the contract lets it be acted on. Without it, they are
    not in the module.

    ``example`` is one input with a batch, a tuple of inputs, or a mapping of them by name; by default it is
    made from the artifact's ``model.input_shape``. The model is run on it. Its scores must be as wide as the
    artifact is, and of a kind that it was fitted on or that can be turned into that: where it was fitted on
    log-probabilities and that matters, logits are normalised first. What the calibrated module returns is
    compared with numpy. ``outputs`` says what the scores are where their numbers do not, ``output`` where
    they lie in a tuple, mapping or object, as in "logits" or "0". Without any example, ``outputs`` or what
    the artifact records is believed, and only the width is checked, when the module is called.

    ``last_linear`` names the layer that makes the logits, for an artifact with a Head and for ``fold``, which
    multiplies the logit maps into that layer; by default it is found by its shape. Tensors are shared with
    ``model``, but for the layer that changes. Returned in evaluation mode, on the model's device and dtype; a
    model of several inputs, or that returns several things, is to be scripted before, not after. Raises
    FuseError where a check or the comparison fails, ModelError where the model refuses the example or
    returns no such scores, InputError for wrong options.

    >>> halved = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)
    >>> calibrated(nn.Identity(), halved, returns="logits")(torch.tensor([[2.0, 0.0]])).tolist()
    [[1.0, 0.0]]
    """
    asked = changed(options or ModuleOptions(), given)
    shown = Example.of_shape(model, artifact) if example is None else Example.of(example)
    return fused(model, artifact, asked, shown).whole


@dataclass(frozen=True, eq=False)
class Scores:
    """What a model returns: ``path`` to its scores, what they are, their dtype and device."""

    path: Where
    outputs: Outputs
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, eq=False)
class Fusion:
    """``whole`` is ``model`` with the artifact inside; ``parity`` is None where there was no example.

    ``layer`` is the last linear layer where it was changed, ``examples`` how many of the fit's own scores
    got the fit's own probabilities.
    """

    whole: nn.Module
    model: nn.Module
    artifact: Artifact
    returns: Returns
    scores: Scores
    change: Change
    layer: str | None
    examples: int = 0
    parity: Parity | None = None

    def prove(self, whole: nn.Module, model: nn.Module, example: Example) -> Parity:
        """Compare ``whole`` with ``model`` calibrated in numpy: these two, or copies of them elsewhere."""
        artifact, path = self.artifact, self.scores.path
        moved = example.shifted(artifact.input_shift)

        def scores_of(network: nn.Module) -> Tensor:
            scores: Tensor = lookup(moved.run(network), path)
            return scores

        scores = scores_of(model)
        if artifact.head is not None and self.layer is not None:
            features = features_of(model, self.layer, scores_of)
            logits: Any = artifact.head(features)
        else:
            logits = as_fitted(to_logits(numbers(scores), self.scores.outputs), self.change)
        expected = expect(logits, artifact, scores.dtype, relayered=self.layer is not None)
        returned = example.run(whole)
        engine = f"torch {torch.__version__} on {scores.device}"
        found = {}
        if decided(artifact):
            found = {name: returned[name].cpu().numpy() for name in decided(artifact)}
            shown = returned["logits" if self.returns == "logits" else "probabilities"]
        else:
            shown = returned[1] if self.returns == "all" else returned
        try:
            return compare(shown, expected, self._shown, engine, (artifact, found))
        except FuseError:
            apart = float((scores_of(model).double() - scores.double()).abs().max())
            if not apart <= expected.tolerance:
                raise FuseError(
                    f"one input's scores move by {apart:.2g} between runs: the model is in training mode "
                    "(dropout or batch statistics are on); call model.eval() before exporting it"
                ) from None
            raise

    def response_of(self, inputs: NDArray[np.float32]) -> NDArray[Any] | None:
        """Return the logits (n, K) that ``model`` gives for inputs (n, ...); None where it takes others."""
        scores = self.scores
        made = torch.from_numpy(inputs).to(scores.device, home(self.model)[1])
        try:
            found = lookup(Example((made,)).run(self.model), scores.path)
        except ModelError:
            return None
        return to_logits(numbers(found), scores.outputs)

    @property
    def _shown(self) -> Outputs | None:
        """What ``whole`` returns in place of probabilities, if not these."""
        own = self.scores.outputs
        if self.returns != "logits":
            return None
        if isinstance(self.whole.tail, Unchanged):
            return own
        return "logit" if own in ONE_COLUMN else "label_logits" if own in LABELS else "logits"


def fused(model: nn.Module, artifact: Artifact, asked: ModuleOptions, example: Example | None) -> Fusion:
    """As ``calibrated``, with what was found on the way."""
    check_outputs(asked.outputs)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"the model must be an nn.Module, got {type(model).__name__}; "
            "calibrate the module or exported program that it was compiled from, then compile"
        )
    model = evaluating(model)
    if example is None:
        scores = _told(model, artifact, asked.output, asked.outputs)
    else:
        returned = example.shifted(artifact.input_shift).run(model)
        scores = _found(returned, artifact, asked.output, asked.outputs, example.samples)
    change = change_to_fitted(scores.outputs, artifact)
    maps = tuple(m for m in artifact.logit_maps if not m.is_nothing)
    folded = maps if asked.fold else ()
    if artifact.head is not None or asked.fold:
        _check_layer(scores.outputs, change, folded)
    layer, changed = None, model
    extra: list[nn.Module] = []
    if artifact.head is not None or folded:
        features = None if artifact.head is None else artifact.head.weights[0].shape[1]
        layer = find_linear(model, features, artifact.classes, asked.last_linear)
        changed, extra = replace_last(model, layer, artifact.head, folded)
    tail_of = _TAILS[asked.returns]
    if asked.returns == "logits" and not artifact.output_steps and scores.outputs in PROBABILITIES:
        tail_of = Unchanged
    decides = asked.decisions and bool(decided(artifact))
    if decides:
        check_decidable(artifact, "leave the decisions out: no --decisions (decisions=)")
        tail_of = partial(_deciding, asked.returns)
    tail = tail_of(() if asked.fold else maps, artifact, scores.dtype, scores.outputs, change)
    tail = tail.to(scores.device).eval()
    examples = 0 if folded else check_examples(tail, artifact, scores.device)
    shift = artifact.input_shift
    whole = assemble(
        nn.Identity() if shift is None or shift.is_nothing else Shift(shift).to(scores.device),
        evaluating(changed),
        nn.Sequential(*extra).eval(),
        tail,
        scores.path,
    )
    acting = artifact if decides else undecided(artifact)
    fusion = Fusion(whole, model, acting, asked.returns, scores, change, layer, examples)
    if example is None:
        return fusion
    return replace(fusion, parity=fusion.prove(whole, model, example))


def _deciding(returns: Returns, *given: Any) -> Tail:
    tail = Deciding(*given)
    tail.returns = returns
    return tail


def _told(model: nn.Module, artifact: Artifact, output: str | None, outputs: Outputs | None) -> Scores:
    """What is believed of the scores without a look at them."""
    device, dtype = home(model)
    return Scores(Form.parse(output or "").path, artifact.model.returned(outputs), dtype, device)


def _found(
    returned: Any, artifact: Artifact, output: str | None, outputs: Outputs | None, samples: int
) -> Scores:
    """Where the scores lie in what the model returned for an example, and what they are by their numbers."""
    classes = artifact.classes if artifact.classes > 1 else None
    form = find_scores(returned, classes)[0] if output is None else Form.parse(output)
    form.scores(returned, classes)
    path = _positions(returned, form.path)
    scores = lookup(returned, path)
    if not isinstance(scores, Tensor):
        raise FuseError(f"the model returns its scores as a {type(scores).__name__}; it must be one tensor")
    if len(scores) != samples:
        raise FuseError(
            f"the model returns scores {tuple(scores.shape)} for {samples} inputs; it must be a row each"
        )
    kind = kind_of(scores, artifact, outputs)
    columns, wanted = scores[0].numel(), 1 if kind in ONE_COLUMN else artifact.classes
    if columns != wanted or (kind in ONE_COLUMN and artifact.classes != 2):
        raise FuseError(
            f"the model returns {tuple(scores.shape)}, {columns} of {kind} a sample, and the artifact is for "
            f"{artifact.classes} {'labels' if artifact.is_multilabel else 'classes'}; fit it on this model"
        )
    return Scores(path, kind, scores.dtype, scores.device)


def _positions(returned: Any, path: Where) -> Where:
    """``path`` with positions for the names of a named tuple, which TorchScript and exports need."""
    made: list[str | int] = []
    for step in path:
        fields = getattr(returned, "_fields", ())
        made.append(fields.index(step) if step in fields else step)
        returned = lookup(returned, (made[-1],))
    return tuple(made)


def _check_layer(outputs: Outputs, change: Change, folded: tuple[LogitMap, ...]) -> None:
    if outputs not in ("logits", "label_logits"):
        raise FuseError(
            f"the model returns {outputs}: its last linear layer does not make what is calibrated"
        )
    if folded and (change != "none" or any(m.on == "log_probs" for m in folded)):
        raise FuseError("a map on log-probabilities cannot be folded into a layer; leave --fold (fold=) off")
