"""An inference of a calibrated model over REST: what to ask the server, and what to make of its reply.

It fails open: a reply that cannot be calibrated goes on as it came, with a header that says so, and is
counted.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from calib_serve.errors import CalibServeError, InputError
from calib_serve.gateway.calibration import ADDED, About, Calibration, Calibrations, Counts
from calib_serve.gateway.coding import decoded, encoded
from calib_serve.gateway.headers import JSON_LENGTH, Headers, at_most_one, forwarded, json_length_of, without
from calib_serve.gateway.rest import Ask, Reply, read_request
from calib_serve.gateway.routes import Route
from calib_serve.gateway.tensors import Tensor

__all__ = ["UNCALIBRATED", "Asked", "Inference", "Wanted", "found", "why_not"]

log = logging.getLogger("calib_serve.gateway")

UNCALIBRATED = "x-calib-uncalibrated"
"""The header, or gRPC's trailing metadata, of a reply that went on without a calibration: why."""

_LARGER = 16  # than a request a reply may be, once it is decompressed
_OF_THE_BYTES = (b"etag", b"content-md5", b"digest", b"content-digest")


class Asked(NamedTuple):
    """The body and the headers to send to the server, and what the client wants of the reply."""

    body: bytes
    headers: Headers
    of: Ask


class Wanted(NamedTuple):
    """An inference of a model of which ``output`` is calibrated; ``most`` bytes are read of its body.

    ``may_add``: the outputs that its replies may get.
    """

    route: Route
    output: str
    about: About
    most: int
    may_add: frozenset[str] = ADDED

    def ask(self, held: bytes, headers: Headers) -> Asked:
        """What to send for the body ``held``; InputError for what the gateway does not take."""
        coding = at_most_one(headers, b"content-encoding").lower()
        body = decoded(held, coding, most=self.most)
        ask = read_request(body, json_length_of(headers, len(body)), self.output, self.may_add)
        sent = forwarded(headers, b"host", b"content-length")
        if ask.body is body:
            return Asked(held, [*sent, _length(held)], ask)
        sent = without(sent, b"content-encoding", JSON_LENGTH)
        if ask.json_length is not None:
            sent.append((JSON_LENGTH, str(ask.json_length).encode()))
        return Asked(ask.body, [*sent, _length(ask.body)], ask)


class Inference:
    """Makes the replies of calibrated models; safe to use from threads."""

    def __init__(self, calibrations: Calibrations, counts: Counts) -> None:
        self._calibrations, self._counts = calibrations, counts

    def reply(self, wanted: Wanted, asked: Asked, headers: Headers, content: bytes) -> tuple[bytes, Headers]:
        """The reply to the client, of the server's reply of status 200; never raises."""
        model, version = wanted.route.model, wanted.route.version
        try:
            coding = at_most_one(headers, b"content-encoding").lower()
            body = decoded(content, coding, most=_LARGER * wanted.most)
            reply = Reply.read(body, json_length_of(headers, len(body)))
            version = reply.version or version
            calibration, scores = found(self._calibrations, model, version, reply.scores(wanted.output))
            calibrated = calibration(scores.values, wanted.about)
            made, json_length = reply.write(asked.of, wanted.output, scores.datatype, calibrated)
            made = encoded(made, coding)
        except Exception as error:  # fails open, and is counted
            self._counts.passed(model, version)
            return content, [*headers, (UNCALIBRATED.encode(), why_not(error, model, version).encode())]
        lengths = {b"content-length": _length(made)[1]}
        if json_length is not None:
            lengths[JSON_LENGTH] = str(json_length).encode()
        return made, _with(without(headers, *_OF_THE_BYTES), lengths)


def found(
    calibrations: Calibrations, model: str, version: str, scores: Tensor | None
) -> tuple[Calibration, Tensor]:
    """The calibration of a reply, and what it acts on; InputError where either is missing."""
    calibration = calibrations.find(model, version)
    if calibration is None:
        raise InputError(f"there is no calibration of version {version[:40]!r}")
    if scores is None:
        raise InputError(f"the reply has no output {calibration.output!r}")
    return calibration, scores


def why_not(error: Exception, model: str, version: str) -> str:
    """Why a reply is not calibrated, in a line for its client; all of it in the log."""
    known = isinstance(error, CalibServeError)
    log.error(
        "%s:%s passes without calibration: %s", model, version, error, exc_info=None if known else error
    )
    told = str(error) if known else "the calibration failed"
    return "".join(sign if " " <= sign <= "~" else "?" for sign in told)[:200]


def _length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", str(len(body)).encode()


def _with(headers: Headers, values: dict[bytes, bytes]) -> Headers:
    """The headers in their order, with these values; what had none before comes last."""
    rest = dict(values)
    found = []
    for name, value in headers:
        key = name.lower()
        if key in values:
            if key in rest:
                found.append((name, rest.pop(key)))
        elif key != JSON_LENGTH:
            found.append((name, value))
    return [*found, *rest.items()]
