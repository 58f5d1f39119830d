"""Receipts and confidences in the replies of somebody else's handler.

A client that read the reply of that handler before still reads it: headers add nothing to it, and in the body
only members are added that KServe's protocols leave room for. Who asks for the body gets the reply inside
another object.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calib_serve.core.oip import as_entry
from calib_serve.torchserve._predictions import AnyPrediction
from calib_serve.torchserve._replies import Columns, facts_of
from calib_serve.torchserve._requests import Message

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
    if message.form == "v1" and isinstance(body, dict) and len(body.get("predictions") or ()) == len(rows):
        shown = {name: many for name, many in _LISTS.items() if all(name in one for one in each)}
        lists = {many: [one[name] for one in each] for name, many in shown.items()}
        body = {**body, **lists}
    elif message.form == "v2" and isinstance(body, dict) and len(body.get("outputs") or ()) == len(rows):
        outputs = [
            {**output, "parameters": {**output.get("parameters", {}), **_parameters(one)}}
            for output, one in zip(body["outputs"], each, strict=True)
        ]
        more = [made[name](rows) for name in _BESIDE if name in made] if message.grpc else []
        body = {**body, "outputs": [*outputs, *map(as_entry, more)]}
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
