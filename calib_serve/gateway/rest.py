"""Requests and replies of the protocol over REST: JSON, or JSON and the bytes of its binary data extension.

A request goes on as it came unless the server must be asked for something else. Of a reply, the calibrated
output is replaced and outputs are added; all else keeps its values and its order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from calib_serve.errors import InputError
from calib_serve.gateway.calibration import ADDED, Calibrated
from calib_serve.gateway.tensors import Tensor, of_list, of_raw, raw_of

__all__ = ["Ask", "Reply", "Unsupported", "read_request"]

_NOT_OURS = ("classification", "shared_memory_region")


class Unsupported(InputError):
    """A request that cannot be answered with a calibrated output."""


class Ask(NamedTuple):
    """What a client wants: ``body`` to send on, its JSON's length if it has bytes after it.

    ``returned``: whether the calibrated output goes to the client; ``added``: which of the outputs that are
    added, None for all.
    """

    body: bytes
    json_length: int | None
    returned: bool = True
    added: frozenset[str] | None = None

    def picked(self, added: list[Tensor], own: frozenset[str]) -> list[Tensor]:
        """Of the outputs to add, those that are wanted and that the model has none of its own of."""
        wanted = [one for one in added if self.added is None or one.name in self.added]
        return [one for one in wanted if one.name not in own]


def read_request(body: bytes, json_length: int | None, output: str, may_add: frozenset[str] = ADDED) -> Ask:
    """What is asked of a model of which ``output`` is calibrated, and whose replies get some of ``may_add``.

    Unsupported where the output is asked for in a form that cannot be calibrated. A body that is not of the
    protocol goes on as it is: the server says what is wrong with it.
    """
    head = body if json_length is None else body[:json_length]
    if b'"outputs"' not in head and b"\\u" not in head:
        return Ask(body, json_length)  # all outputs; most requests end here, without being parsed
    try:
        document = json.loads(head)
    except (ValueError, RecursionError):
        return Ask(body, json_length)
    outputs = document.get("outputs") if isinstance(document, dict) else None
    if not isinstance(outputs, list) or not outputs or not all(isinstance(one, dict) for one in outputs):
        return Ask(body, json_length)
    names = [one.get("name") for one in outputs]
    ours = frozenset(name for name in names if name in may_add)
    added = ours or None
    for one in outputs:
        if one.get("name") == output:
            check_parameters(output, one.get("parameters"))
    if output in names and not ours:
        return Ask(body, json_length)
    kept = [one for one in outputs if one.get("name") not in ours]
    if output not in names:
        kept.append({"name": output, **_form_of(outputs)})
    document["outputs"] = kept
    made = json.dumps(document).encode()
    if json_length is None:
        return Ask(made, None, output in names, added)
    return Ask(made + body[json_length:], len(made), output in names, added)


def check_parameters(output: str, parameters: Any) -> None:
    """Unsupported for an output in a form that is not its scores."""
    for name in _NOT_OURS:
        if isinstance(parameters, Mapping) and name in parameters:
            raise Unsupported(
                f"{output} is calibrated by the gateway, which cannot do so with {name}; ask for it without"
            )


def _form_of(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """The binary form, where the client asks for another output in it."""
    asked = [one.get("parameters") for one in outputs]
    binary = any(isinstance(one, dict) and one.get("binary_data") for one in asked)
    return {"parameters": {"binary_data": True}} if binary else {}


@dataclass
class Reply:
    """A reply, read: its JSON, and the bytes of outputs by their place."""

    document: dict[str, Any]
    blobs: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, body: bytes, json_length: int | None) -> Reply:
        """InputError for what is no reply of the protocol."""
        head = body if json_length is None else body[:json_length]
        try:
            document = json.loads(head)
            outputs = document["outputs"]
            reply, at = cls(document), len(head)
            for place, one in enumerate(outputs):
                size = (one.get("parameters") or {}).get("binary_data_size")
                if size is not None:
                    reply.blobs[place] = body[at : at + size]
                    at += size
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the reply is not of the protocol: {type(error).__name__}") from error
        if at != len(body):
            raise InputError(f"the reply has {len(body)} bytes, and speaks of {at}")
        return reply

    @property
    def version(self) -> str:
        """Of the model; "" where it is not named."""
        return str(self.document.get("model_version") or "")

    def scores(self, output: str) -> Tensor | None:
        """The output of this name, None if there is none."""
        for place, one in enumerate(self.document["outputs"]):
            if one.get("name") == output:
                datatype, shape = one.get("datatype"), one.get("shape")
                if place in self.blobs:
                    return Tensor(output, datatype, of_raw(datatype, shape, self.blobs[place]))
                return Tensor(output, datatype, of_list(datatype, shape, one.get("data")))
        return None

    def own(self) -> frozenset[str]:
        """The names of the model's outputs."""
        return frozenset(one.get("name") for one in self.document["outputs"])

    def write(self, ask: Ask, output: str, datatype: str, calibrated: Calibrated) -> tuple[bytes, int | None]:
        """The reply to the client, and the length of its JSON if there are bytes after it."""
        entries, blobs, binary = [], list[bytes](), False
        for place, one in enumerate(self.document["outputs"]):
            blob = self.blobs.get(place)
            if one.get("name") == output:
                binary = blob is not None
                if not ask.returned:
                    continue
                tensor = Tensor(output, datatype, calibrated.values)
                if blob is not None:
                    blob = raw_of(tensor)
                else:
                    nested = bool(one["data"]) and isinstance(one["data"][0], list)
                    one["data"] = (tensor.values if nested else tensor.values.ravel()).tolist()
            entries.append(one)
            blobs += [] if blob is None else [blob]
        for tensor in ask.picked(calibrated.added, self.own()):
            entry: dict[str, Any] = {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": tensor.shape,
            }
            if binary:
                blobs.append(raw_of(tensor))
                entry["parameters"] = {"binary_data_size": len(blobs[-1])}
            else:
                data = tensor.values.ravel().tolist()
                entry["data"] = [one.decode() for one in data] if tensor.datatype == "BYTES" else data
            entries.append(entry)
        head = json.dumps({**self.document, "outputs": entries}, separators=(",", ":")).encode()
        return b"".join([head, *blobs]), len(head) if blobs else None
