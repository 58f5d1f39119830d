"""Replies in a request's own protocol: those of our own handlers, and receipts beside those of others."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.oip import Tensor, as_entry
from calib_serve.receipts import KEYRING, LABEL_BUDGET, from_environment
from calib_serve.torchserve._predictions import AnyPrediction, LabelsPrediction, Prediction, RowDecisions
from calib_serve.torchserve._requests import Message
from calib_serve.torchserve.mar_options import ModelOptions

ASKING = "x-calib-receipt"
"""The header, or gRPC input, that asks with "body" for receipts in the body."""

Columns = Mapping[str, Callable[[Sequence[Any]], Tensor]]
"""Output tensors by name, each made of a request's predictions."""


def facts_of(prediction: AnyPrediction, names: Sequence[str]) -> dict[str, Any]:
    """Confidence, receipt and decisions, for JSON; classes by their ``names``, else by id.

    Of a multi-label model, ``labels`` has these of each label.
    """
    if isinstance(prediction, LabelsPrediction):
        return {"labels": [one.as_dict(names) for one in prediction.choices]}
    found: dict[str, Any] = {"confidence": prediction.confidence}
    in_set, abstain, act, decision = prediction.decisions
    if in_set is not None:
        found["set"] = [names[k] if names else k for k in in_set]
    if abstain is not None:
        found["abstain"] = abstain
    if act is not None:
        found["act"] = act
    if decision is not None:
        found["decision"] = decision
    if prediction.receipt is not None:
        found["receipt"] = prediction.receipt
        if not prediction.receipt.wanted:
            found["label_wanted"] = False
    return found


def full_reply(
    prediction: AnyPrediction, options: ModelOptions, names: Sequence[str], *, model: str, version: str
) -> dict[str, Any]:
    """Write the reply to one request of our own classifier, with the extras in ``options``."""
    p = prediction.probabilities
    reply: dict[str, Any] = {"predicted": prediction.predicted, "model": model, "version": version}
    if options.top:
        order = np.argsort(-p, kind="stable")[: options.top].tolist()
        name = {k: {"label": names[k]} if names else {} for k in order}
        reply["top"] = [{"class": k, **name[k], "probability": float(p[k])} for k in order]
    if isinstance(prediction, Prediction):
        if names:
            reply["label"] = names[prediction.predicted]
        if options.probabilities:
            reply["probabilities"] = p.tolist()
        return {**reply, **facts_of(prediction, names)}
    reply["predicted"] = list(prediction.predicted)
    if names:
        reply["labels"] = [names[k] for k in prediction.predicted]
    if options.probabilities:
        listed = p.tolist()
        different = len({*names}) == len(p)
        reply["probabilities"] = dict(zip(names, listed, strict=True)) if different else listed
    if any(one.receipt is not None for one in prediction.choices):
        reply["receipts"] = facts_of(prediction, names)["labels"]
    return reply


def columns(options: ModelOptions, artifact: Artifact) -> Columns:
    """List the output columns of a model, by its ``options``, its artifact, and this host's settings."""
    made = dict[str, Callable[[Sequence[Any]], Tensor]]()

    def column(name: str, datatype: str, value: Callable[[Any], Any]) -> None:
        made[name] = lambda found: Tensor(name, datatype, np.array([value(one) for one in found]))

    names, labels = artifact.class_names, artifact.is_multilabel
    if labels:
        column("predicted", "BOOL", lambda one: one.probabilities >= options.threshold)
    else:
        column("predicted", "INT64", lambda one: one.predicted)
        column("confidence", "FP64", lambda one: one.confidence)
        if names:
            column("label", "BYTES", lambda one: names[one.predicted])
    if options.probabilities:
        column("probabilities", "FP64", lambda one: one.probabilities)
    if artifact.sets is not None:
        column("set", "BOOL", lambda one: _insides(one.decisions, artifact.classes))
    if artifact.abstain is not None or options.abstain_below is not None:
        column("abstain", "BOOL", lambda one: one.decisions.abstain)
    if artifact.contract is not None:
        column("act", "BOOL", lambda one: one.decisions.act)
    if artifact.choice is not None:
        column("decision", "BYTES", lambda one: one.decisions.decision)
    if from_environment(KEYRING) is None:
        return made

    def each(name: str, datatype: str, value: Callable[[Any], Any]) -> None:
        """Add a column of one value a prediction; of a multi-label model (n, receipts)."""
        of_labels = lambda one: [value(choice) for choice in one.choices]  # noqa: E731
        column(name, datatype, of_labels if labels else value)

    each("receipt", "BYTES", lambda one: one.receipt or "")
    if labels:
        each("receipt_label", "INT64", lambda one: one.label)
        each("confidence", "FP64", lambda one: one.confidence)
    if from_environment(LABEL_BUDGET) is not None:
        each("label_wanted", "BOOL", lambda one: one.receipt is not None and one.receipt.wanted)
    return made


def _insides(decisions: RowDecisions, classes: int) -> NDArray[np.bool_]:
    """A prediction set as (K,): whether each class is in it, as fused models return it."""
    inside = np.zeros(classes, np.bool_)
    inside[list(decisions.in_set or ())] = True
    return inside


def v2_reply(message: Message, outputs: Sequence[Tensor], *, model: str, version: str) -> dict[str, Any]:
    """Write an Open Inference Protocol reply."""
    found = [as_entry(one) for one in outputs]
    return {"id": message.id, "model_name": model, "model_version": version, "outputs": found}


def refusal(message: Message, status: int, reason: str, *, model: str, version: str) -> dict[str, Any]:
    """A refusal with its reason, in the request's protocol.

    TorchServe drops the status of a gRPC reply, and a ModelInfer without outputs hangs: there, ``error`` and
    ``code`` are the outputs.
    """
    if message.grpc:
        outputs = [Tensor("error", "BYTES", np.array([reason])), Tensor("code", "INT32", np.array([status]))]
        return v2_reply(message, outputs, model=model, version=version)
    return {"code": status, "message": reason} if message.form == "plain" else {"error": reason}


# Receipts beside the replies of somebody else's handler, whose clients read these as before.

_HEADERS: Mapping[str, Callable[[Any], str]] = {
    "confidence": repr,
    "label": str,
    "receipt": str,
    "abstain": json.dumps,
    "act": json.dumps,
    "decision": json.dumps,
}
"""What of ``facts_of`` has a header "x-calib-" of its own, and how it is written there."""

_BESIDE = ("confidence", "receipt", "receipt_label", "label_wanted", "set", "abstain", "act", "decision")
"""The columns that stand beside another handler's own outputs."""

_LISTS = {"confidence": "confidences", "receipt": "receipts", "set": "sets", "abstain": "abstentions"}
_LISTS |= {"act": "acts", "decision": "decisions", "labels": "labels"}

MOST_IN_HEADER = 32
"""Receipts of one request; more would break clients and proxies that limit a header's length."""


def in_headers(put: Callable[[str, str], None], rows: Sequence[AnyPrediction]) -> bool:
    """Call ``put`` with each header's name and value; several rows, and labels, are joined by commas.

    The ids of a set's classes are joined by spaces. Returns False where sets are left out, as together they
    are of more than 256 classes.
    """
    facts = [facts_of(row, ()) for row in rows]
    each = [one for whole in facts for one in whole.get("labels", [whole])]
    for name, text in _HEADERS.items():
        if found := [text(one[name]) for one in each if name in one]:
            put(f"x-calib-{name}", ", ".join(found))
    signed = [one for one in each if "receipt" in one]
    if not all(one.get("label_wanted", True) for one in signed):
        put("x-calib-label-wanted", ", ".join(json.dumps(one.get("label_wanted", True)) for one in signed))
    sets = [one["set"] for one in each if "set" in one]
    if sum(map(len, sets)) > 256:  # classes; more would break clients and proxies as well
        return False
    if sets:
        put("x-calib-set", ", ".join(" ".join(map(str, ids)) for ids in sets))
    return True


def in_protocol(
    reply: Any, message: Message, rows: Sequence[AnyPrediction], names: Sequence[str], made: Columns
) -> Any:
    """Add receipts and confidences beside the predictions in a KServe envelope's reply.

    v1: lists ``receipts``, ``confidences``, ``sets``, ``abstentions``, ``acts``, ``decisions``, or
    ``labels``. v2: ``parameters`` of each output, and over gRPC, which drops these, output tensors, the
    ``made`` columns. Any other reply as it is.
    """
    body = _parsed(reply)
    each = [facts_of(one, names) for one in rows]
    if not isinstance(body, dict):
        return reply
    if message.form == "v1" and len(body.get("predictions") or ()) == len(rows):
        shown = {name: many for name, many in _LISTS.items() if all(name in one for one in each)}
        lists = {many: [one[name] for one in each] for name, many in shown.items()}
        body = {**body, **lists}
    elif message.form == "v2" and len(body.get("outputs") or ()) == len(rows):
        outputs = [
            {**output, "parameters": {**output.get("parameters", {}), **_parameters(one)}}
            for output, one in zip(body["outputs"], each, strict=True)
        ]
        more = [made[name](rows) for name in _BESIDE if name in made] if message.grpc else []
        body = {**body, "outputs": [*outputs, *map(as_entry, more)]}
    else:
        return reply
    return json.dumps(body) if isinstance(reply, str) else body


def in_body(reply: Any, rows: Sequence[AnyPrediction], names: Sequence[str]) -> dict[str, Any]:
    """Wrap a reply: ``{"prediction": reply, "confidence": ...}``; ``instances`` where rows are several."""
    each = [facts_of(one, names) for one in rows]
    return {"prediction": _parsed(reply), **(each[0] if len(each) == 1 else {"instances": each})}


def _parameters(one: Mapping[str, Any]) -> dict[str, Any]:
    """Turn lists to texts for the Open Inference Protocol, whose parameters are plain."""
    return {name: json.dumps(value) if isinstance(value, list) else value for name, value in one.items()}


def _parsed(reply: Any) -> Any:
    """Parse a reply's text, where it is JSON."""
    if isinstance(reply, (bytes, bytearray)):
        reply = bytes(reply).decode("utf-8", "replace")
    if isinstance(reply, str):
        with contextlib.suppress(ValueError):
            return json.loads(reply)
    return reply
