"""How the replies of somebody else's handler carry receipts and confidences: in headers, or in the body.

A client that read the reply before still reads it: headers add nothing to it, and in the body only members
are added that KServe's protocols leave room for. Who asks for the body gets the reply inside another object.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Union

from calib_serve.receipts import SignedReceipt
from calib_serve.reporter.decisions import Decision
from calib_serve.serve.decided import NOTHING, Decided, as_dict, insides
from calib_serve.serve.protocols import Message

__all__ = [
    "ASKING",
    "MOST_IDS",
    "MOST_IN_HEADER",
    "AnySaid",
    "Said",
    "SaidOfLabels",
    "in_body",
    "in_headers",
    "in_protocol",
]

ASKING = "x-calib-receipt"
"""The header, or gRPC input, that asks with "body" for receipts in the body."""

MOST_IN_HEADER = 32
"""Receipts of one request; more would break clients and proxies that limit a header's length."""


MOST_IDS = 256
"""Classes in the sets of one request, for the same reason."""


class Said(NamedTuple):
    """What is said of one row, of ``classes``; ``names`` of them, or none."""

    confidence: float
    receipt: SignedReceipt | None
    decided: Decided = NOTHING
    names: Sequence[str] = ()
    classes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = {"confidence": self.confidence, **as_dict(self.decided, self.names)}
        if self.receipt is None:
            return found
        found["receipt"] = str(self.receipt)
        return found if self.receipt.wanted else {**found, "label_wanted": False}

    @property
    def each(self) -> Sequence[Said]:
        """All that have a receipt."""
        return (self,)

    def parameters(self) -> dict[str, Any]:
        """For the Open Inference Protocol, whose parameters are texts, numbers, true or false."""
        found = self.as_dict()
        return {**found, "set": json.dumps(found["set"])} if "set" in found else found


class SaidOfLabels(NamedTuple):
    """What is said of one row of a multi-label model; ``names`` of its labels, or none."""

    each: Sequence[Decision]
    names: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"labels": [one.as_dict(self.names) for one in self.each]}

    def parameters(self) -> dict[str, Any]:
        """For the Open Inference Protocol, whose parameters are texts or numbers."""
        return {"labels": json.dumps(self.as_dict()["labels"])}


AnySaid = Union[Said, SaidOfLabels]


def in_headers(put: Callable[[str, str], None], said: Sequence[AnySaid]) -> bool:
    """Call ``put`` with each header's name and value; several rows, and labels, are joined by commas.

    The ids of a set's classes are joined by spaces. Returns False where sets are left out, as together they
    are of more classes than ``MOST_IDS``.
    """
    each = [one for row in said for one in row.each]
    put("x-calib-confidence", ", ".join(repr(one.confidence) for one in each))
    if labels := [str(one.label) for one in each if isinstance(one, Decision)]:
        put("x-calib-label", ", ".join(labels))
    receipts = [one.receipt for one in each if one.receipt is not None]
    if receipts:
        put("x-calib-receipt", ", ".join(receipts))
        if not all(receipt.wanted for receipt in receipts):
            put("x-calib-label-wanted", ", ".join(str(receipt.wanted).lower() for receipt in receipts))
    decided = [one.decided for one in said if isinstance(one, Said)]
    if abstained := [str(one.abstain).lower() for one in decided if one.abstain is not None]:
        put("x-calib-abstain", ", ".join(abstained))
    if acts := [str(one.act).lower() for one in decided if one.act is not None]:
        put("x-calib-act", ", ".join(acts))
    sets = [one.in_set for one in decided if one.in_set is not None]
    if sum(map(len, sets)) > MOST_IDS:
        return False
    if sets:
        put("x-calib-set", ", ".join(" ".join(map(str, ids)) for ids in sets))
    return True


def in_protocol(reply: Any, message: Message, said: Sequence[AnySaid]) -> Any:
    """The reply of a KServe envelope with its rows' receipts and confidences beside the predictions.

    v1: lists ``receipts``, ``confidences``, ``sets``, ``abstentions`` and ``acts``, or ``labels``. v2:
    ``parameters`` of each output, and over gRPC, which drops these, output tensors of these names. Any other
    reply as it is.
    """
    body = _parsed(reply)
    if message.form == "v1" and isinstance(body, dict) and len(body.get("predictions") or ()) == len(said):
        body = {**body, **_lists(said)}
    elif message.form == "v2" and isinstance(body, dict) and len(body.get("outputs") or ()) == len(said):
        outputs = [
            {**output, "parameters": {**output.get("parameters", {}), **one.parameters()}}
            for output, one in zip(body["outputs"], said, strict=True)
        ]
        body = {**body, "outputs": [*outputs, *(_tensors(said) if message.grpc else ())]}
    return json.dumps(body) if isinstance(reply, str) else body


def in_body(reply: Any, said: Sequence[AnySaid]) -> dict[str, Any]:
    """``{"prediction": reply, "confidence": ..., "receipt": ...}``; ``instances`` where rows are several.

    Of a multi-label model, ``labels`` has these of each label.
    """
    one = said[0].as_dict() if len(said) == 1 else {"instances": [row.as_dict() for row in said]}
    return {"prediction": _parsed(reply), **one}


def _lists(said: Sequence[AnySaid]) -> dict[str, Any]:
    """One item a row."""
    if isinstance(said[0], SaidOfLabels):
        return {"labels": [one.as_dict()["labels"] for one in said]}
    each = [one for row in said for one in row.each]
    found: dict[str, Any] = {"confidences": [one.confidence for one in each]}
    if all(one.receipt is not None for one in each):
        found["receipts"] = [str(one.receipt) for one in each]
    decided = [one.as_dict() for one in said]
    for name, plural in (("set", "sets"), ("abstain", "abstentions"), ("act", "acts")):
        if name in decided[0]:
            found[plural] = [one[name] for one in decided]
    return found


def _tensors(said: Sequence[AnySaid]) -> list[dict[str, Any]]:
    """Of shape (rows,), or of labels (rows, receipts)."""
    shape = [len(said)] + ([len(said[0].each)] if isinstance(said[0], SaidOfLabels) else [])
    each = [one for row in said for one in row.each]
    columns: list[tuple[str, str, list[Any]]] = [("confidence", "FP64", [one.confidence for one in each])]
    if all(one.receipt is not None for one in each):
        columns.append(("receipt", "BYTES", [str(one.receipt) for one in each]))
    if labels := [one.label for one in each if isinstance(one, Decision)]:
        columns.append(("receipt_label", "INT64", labels))
    tensors = [{"name": name, "datatype": kind, "shape": shape, "data": data} for name, kind, data in columns]
    return tensors + _decided_tensors([one for one in said if isinstance(one, Said)])


def _decided_tensors(said: Sequence[Said]) -> list[dict[str, Any]]:
    """Sets (rows, K), abstentions and acts (rows,), where they are decided."""
    decided, found = [one.decided for one in said], list[dict[str, Any]]()
    if said and decided[0].in_set is not None:
        inside = insides(decided, said[0].classes)
        shape, data = list(inside.shape), inside.ravel().tolist()
        found.append({"name": "set", "datatype": "BOOL", "shape": shape, "data": data})
    if said and decided[0].abstain is not None:
        data = [bool(one.abstain) for one in decided]
        found.append({"name": "abstain", "datatype": "BOOL", "shape": [len(said)], "data": data})
    if said and decided[0].act is not None:
        data = [bool(one.act) for one in decided]
        found.append({"name": "act", "datatype": "BOOL", "shape": [len(said)], "data": data})
    return found


def _parsed(reply: Any) -> Any:
    """What a reply's text says, where it is JSON."""
    if isinstance(reply, (bytes, bytearray)):
        reply = bytes(reply).decode("utf-8", "replace")
    if isinstance(reply, str):
        with contextlib.suppress(ValueError):
            return json.loads(reply)
    return reply
