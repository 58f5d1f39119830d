"""Replies in a request's own protocol, as JSON objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from calib_serve.artifact import Artifact
from calib_serve.fuse.mar_options import KEYRING, LABEL_BUDGET, ModelOptions, from_environment
from calib_serve.reporter.decisions import Decision
from calib_serve.serve.decided import as_dict, insides
from calib_serve.serve.protocols import Message, Tensor
from calib_serve.serve.results import AnyPrediction, LabelsPrediction, Prediction

__all__ = [
    "Columns",
    "in_full",
    "label_columns",
    "numbers",
    "of_labels",
    "own_columns",
    "prediction_columns",
    "refusal",
    "texts",
    "v2_reply",
]

Columns = Mapping[str, Callable[[Sequence[Any]], Tensor]]
"""The output tensors of a model by name, each made of a request's predictions."""


def in_full(
    prediction: Prediction, options: ModelOptions, names: Sequence[str], *, model: str, version: str
) -> dict[str, Any]:
    """The reply to one request, with all that the ``options`` ask for; ``names`` of the classes, or none."""
    reply: dict[str, Any] = {
        "predicted": prediction.predicted,
        **({"label": names[prediction.predicted]} if names else {}),
        "confidence": prediction.confidence,
        "model": model,
        "version": version,
    }
    if options.top:
        reply["top"] = _top(prediction, options.top, names)
    if options.probabilities:
        reply["probabilities"] = prediction.probabilities.tolist()
    reply |= as_dict(prediction.decided, names)
    if prediction.receipt is not None:
        reply["receipt"] = prediction.receipt
        if not prediction.receipt.wanted:
            reply["label_wanted"] = False
    return reply


def of_labels(
    prediction: LabelsPrediction, options: ModelOptions, names: Sequence[str], *, model: str, version: str
) -> dict[str, Any]:
    """The same of a multi-label model: ids, and by name where labels have one."""
    p = prediction.probabilities.tolist()
    reply: dict[str, Any] = {
        "predicted": list(prediction.predicted),
        **({"labels": [names[k] for k in prediction.predicted]} if names else {}),
        "model": model,
        "version": version,
    }
    if options.top:
        reply["top"] = _top(prediction, options.top, names)
    if options.probabilities:
        reply["probabilities"] = dict(zip(names, p, strict=True)) if len({*names}) == len(p) else p
    if any(one.receipt is not None for one in prediction.decisions):
        reply["receipts"] = [one.as_dict(names) for one in prediction.decisions]
    return reply


def _top(prediction: AnyPrediction, top: int, names: Sequence[str]) -> list[dict[str, Any]]:
    order = np.argsort(-prediction.probabilities, kind="stable")[:top].tolist()
    p = prediction.probabilities
    return [{"class": k, **({"label": names[k]} if names else {}), "probability": float(p[k])} for k in order]


def v2_reply(message: Message, outputs: Sequence[Tensor], *, model: str, version: str) -> dict[str, Any]:
    """An Open Inference Protocol reply; data are flat, as gRPC needs them."""
    found = []
    for one in outputs:
        shape = [len(one.values)] if isinstance(one.values, list) else list(one.values.shape)
        data = one.values if isinstance(one.values, list) else one.values.ravel().tolist()
        found.append({"name": one.name, "datatype": one.datatype, "shape": shape, "data": data})
    return {"id": message.id, "model_name": model, "model_version": version, "outputs": found}


def refusal(message: Message, status: int, reason: str, *, model: str, version: str) -> dict[str, Any]:
    """Why there is no reply: as the protocol says it.

    TorchServe drops the status of a gRPC reply, and a ModelInfer without outputs hangs: there, ``error`` and
    ``code`` are the outputs.
    """
    if message.grpc:
        outputs = [texts("error", [reason]), numbers("code", "INT32", [status])]
        return v2_reply(message, outputs, model=model, version=version)
    return {"code": status, "message": reason} if message.form == "plain" else {"error": reason}


def numbers(name: str, datatype: str, values: Any) -> Tensor:
    """A tensor of one number, or one row of numbers, for each row asked about."""
    return Tensor(name, datatype, np.asarray(values))


def texts(name: str, values: Sequence[Any]) -> Tensor:
    """A tensor of one text, or one row of texts, for each row asked about."""
    return Tensor(name, "BYTES", np.array(values, object))


def prediction_columns(options: ModelOptions, artifact: Artifact) -> Columns:
    """The outputs of a model of classes, by its ``options``, its artifact, and this host's settings."""
    names = artifact.class_names
    columns: dict[str, Callable[[Sequence[Prediction]], Tensor]] = {
        "predicted": lambda found: numbers("predicted", "INT64", [one.predicted for one in found]),
        "confidence": lambda found: numbers("confidence", "FP64", [one.confidence for one in found]),
    }
    if names:
        columns["label"] = lambda found: texts("label", [names[one.predicted] for one in found])
    if options.probabilities:
        columns["probabilities"] = lambda found: numbers(
            "probabilities", "FP64", np.stack([one.probabilities for one in found])
        )
    if artifact.sets is not None:
        columns["set"] = lambda found: numbers(
            "set", "BOOL", insides([one.decided for one in found], artifact.classes)
        )
    if artifact.abstain is not None or options.abstain_below is not None:
        columns["abstain"] = lambda found: numbers("abstain", "BOOL", [one.decided.abstain for one in found])
    if artifact.contract is not None and artifact.contract.decides:
        columns["act"] = lambda found: numbers("act", "BOOL", [one.decided.act for one in found])
    return {**columns, **_receipt_columns()}


def label_columns(options: ModelOptions, _: Artifact) -> Columns:
    """The same of a multi-label model: one number for each label of each row."""
    columns: dict[str, Callable[[Sequence[LabelsPrediction]], Tensor]] = {
        "predicted": lambda found: numbers(
            "predicted", "BOOL", np.stack([one.probabilities for one in found]) >= options.threshold
        )
    }
    if options.probabilities:
        columns["probabilities"] = lambda found: numbers(
            "probabilities", "FP64", np.stack([one.probabilities for one in found])
        )
    return {**columns, **_decision_columns()}


def own_columns(reply: Callable[[Any], str], *, multilabel: bool) -> Columns:
    """The outputs of a model with replies of its own: their JSON, and the receipts."""
    receipts = _decision_columns() if multilabel else _receipt_columns()
    return {"reply": lambda found: texts("reply", [reply(one) for one in found]), **receipts}


def _decision_columns() -> Columns:
    """Receipts of a multi-label model (n, receipts), which label each is of, and its confidence."""
    if from_environment(KEYRING) is None:
        return {}

    def of_each(name: str, datatype: str, value: Callable[[Decision], Any]) -> Callable[[Any], Tensor]:
        kind = object if datatype == "BYTES" else None
        return lambda found: Tensor(
            name, datatype, np.array([[value(d) for d in one.decisions] for one in found], kind)
        )

    columns = {
        "receipt": of_each("receipt", "BYTES", lambda d: d.receipt or ""),
        "receipt_label": of_each("receipt_label", "INT64", lambda d: d.label),
        "confidence": of_each("confidence", "FP64", lambda d: d.confidence),
    }
    if from_environment(LABEL_BUDGET) is not None:
        columns["label_wanted"] = of_each(
            "label_wanted", "BOOL", lambda d: d.receipt is not None and d.receipt.wanted
        )
    return columns


def _receipt_columns() -> Columns:
    if from_environment(KEYRING) is None:
        return {}
    columns: dict[str, Callable[[Sequence[Prediction]], Tensor]] = {
        "receipt": lambda found: texts("receipt", [one.receipt or "" for one in found])
    }
    if from_environment(LABEL_BUDGET) is not None:
        columns["label_wanted"] = lambda found: numbers(
            "label_wanted", "BOOL", [one.receipt is not None and one.receipt.wanted for one in found]
        )
    return columns
