"""Requests for trials of a handler: samples in the forms that handlers take, and arrays of a known shape."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError
from calib_serve.core.files import read_whole

_LARGEST = 256 << 20  # bytes of a request
_TYPES = {".json": "application/json", ".txt": "text/plain", ".csv": "text/csv"}


@dataclass(frozen=True)
class Request:
    """One request: its body, its content type, and the name TorchServe gives the body ("body" or "data")."""

    body: bytes
    content_type: str = "application/octet-stream"
    name: str = "body"

    @classmethod
    def of_file(cls, path: Path) -> Request:
        """Read a file's bytes as a client would post them: JSON and text by the file's ending."""
        try:
            body = read_whole(path, limit=_LARGEST)
            return cls(body, _TYPES.get(path.suffix.lower(), "application/octet-stream"))
        except OSError as error:
            raise InputError(f"cannot read the request {path}: {error}") from error

    @property
    def as_bytes(self) -> Request:
        """The request with the same body and no type, as ``curl -T`` sends it."""
        return replace(self, content_type="application/octet-stream")

    @classmethod
    def from_dict(cls, held: dict[str, str]) -> Request:
        """Read what ``as_dict`` wrote."""
        return cls(base64.b64decode(held["body"]), held["content_type"], held["name"])

    def as_dict(self) -> dict[str, str]:
        """As plain values, for JSON."""
        body = base64.b64encode(self.body).decode()
        return {"body": body, "content_type": self.content_type, "name": self.name}

    @property
    def payload(self) -> Any:
        """Decode the body as the worker does (ts/protocol/otf_message_handler.py)."""
        if self.content_type == "application/json":
            try:
                return json.loads(self.body)
            except ValueError:
                return bytearray(self.body)
        if self.content_type.startswith("text"):
            return self.body.decode("utf-8", "replace")
        return bytearray(self.body)


def of_row(row: NDArray[Any]) -> tuple[Request, ...]:
    """Write one input as JSON in the forms that handlers take: array, {"data": ...}, {"instances": [...]}.

    >>> [request.body for request in of_row(np.array([1.5, 2.0]))]
    [b'[1.5, 2.0]', b'{"data": [1.5, 2.0]}', b'{"instances": [[1.5, 2.0]]}']
    """
    array = row.tolist()
    bodies = (array, {"data": array}, {"instances": [array]})
    return tuple(Request(json.dumps(body).encode(), "application/json") for body in bodies)


def alternatives(sample: Path | NDArray[Any]) -> tuple[Request, ...]:
    """One sample in every form that handlers take, in the same order for samples of one kind.

    A file is sent as its ending says, and text also as bytes; the body is called "body", or "data".
    """
    if isinstance(sample, Path):
        one = Request.of_file(sample)
        forms: tuple[Request, ...] = (one,) if one == one.as_bytes else (one, one.as_bytes)
    else:
        forms = of_row(sample)
    return tuple(replace(form, name=name) for name in ("body", "data") for form in forms)


def made_up(shape: Sequence[int | None] | None, seed: int = 0) -> tuple[Request, ...]:
    """Make one input of a shape, as ``of_row`` writes it; another ``seed`` makes another one."""
    sizes = [1 if size is None or size < 0 else int(size) for size in shape or ()]
    return of_row(np.random.default_rng(seed).random(sizes).round(3)) if sizes else ()
