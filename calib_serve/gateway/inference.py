"""Inferences of calibrated models over REST: what the server is asked, and what the client gets.

A request goes on as it came unless the server must be asked for something else. Of a reply, the calibrated
output is replaced and outputs are added; all else keeps its values and its order. A reply that cannot be
calibrated goes on as it came, with a header that says so, and is counted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from calib_serve.core.errors import CalibServeError, InputError
from calib_serve.core.oip import FLOATS, Tensor
from calib_serve.gateway.calibration import Calibration, Calibrations
from calib_serve.gateway.exporter import UncalibratedReplies
from calib_serve.gateway.http import Headers, at_most_one, content_length, forwarded, without_headers
from calib_serve.gateway.rest import (
    JSON_LENGTH,
    UNCALIBRATED,
    Ask,
    Reply,
    Route,
    compress,
    decompress,
    read_infer_request,
)
from calib_serve.receipts import Tag

log = logging.getLogger("calib_serve.gateway")

_OF_THE_BYTES = (b"etag", b"content-md5", b"digest", b"content-digest")
# A reply that a cache gives twice would have one receipt for two predictions.
_OF_CACHES = (b"cache-control", b"expires", b"age", b"last-modified", b"pragma")
_NOT_KEPT = (b"cache-control", b"no-store")


@dataclass
class Inference:
    """An inference of a model with a calibrated ``output``; at most ``most`` bytes of its body are read.

    ``ask`` makes the server's request, and then ``reply`` the client's reply; each may run in a thread.
    """

    calibrations: Calibrations
    counts: UncalibratedReplies
    route: Route
    output: str
    about: Tag
    most: int
    _wishes: Ask | None = None

    def ask(self, held: bytes, headers: Headers) -> tuple[bytes, Headers]:
        """The body and headers to send for the body ``held``; InputError for one that is not taken."""
        coding = at_most_one(headers, b"content-encoding").lower()
        body = decompress(held, coding, most=self.most)
        may_add = self.calibrations.added_to(self.route.model)
        ask = read_infer_request(body, _json_length_of(headers, len(body)), self.output, may_add)
        self._wishes = ask._replace(body=b"")  # which is not kept while the server is at work
        sent = forwarded(headers, b"host", b"content-length")
        if ask.body is body:
            return held, [*sent, content_length(held)]
        sent = without_headers(sent, b"content-encoding", JSON_LENGTH)
        if ask.json_length is not None:
            sent.append((JSON_LENGTH, str(ask.json_length).encode()))
        return ask.body, [*sent, content_length(ask.body)]

    def reply(self, content: bytes, headers: Headers) -> tuple[bytes, Headers]:
        """Turn the server's reply of status 200 into the client's; never raises."""
        model, version = self.route.model, self.route.version
        try:
            coding = at_most_one(headers, b"content-encoding").lower()
            # A reply may be so much larger than a request, once it is decompressed.
            body = decompress(content, coding, most=16 * self.most)
            assert self._wishes is not None
            reply = Reply.read(body, _json_length_of(headers, len(body)))
            version = reply.version or version
            calibration, scores = found(self.calibrations, model, version, reply.scores(self.output))
            calibrated = calibration(scores.values, self.about)
            made, json_length = reply.write(self._wishes, self.output, scores.datatype, calibrated)
            made = compress(made, coding)
        except Exception as error:  # fails open, and is counted
            self.counts.passed(model, version)
            return content, [*headers, (UNCALIBRATED.encode(), why_not(error, model, version).encode())]
        lengths = {b"content-length": content_length(made)[1]}
        if json_length is not None:
            lengths[JSON_LENGTH] = str(json_length).encode()
        return made, _with(of_another_body(headers), lengths)


def found(
    calibrations: Calibrations, model: str, version: str, scores: Tensor | None
) -> tuple[Calibration, Tensor]:
    """The calibration of a reply, and its scores; InputError where either is missing."""
    calibration = calibrations.find(model, version)
    if calibration is None:
        raise InputError(f"there is no calibration of version {version[:40]!r}")
    if scores is None:
        raise InputError(f"the reply has no output {calibration.output!r}")
    if scores.datatype not in FLOATS:
        raise InputError(f"scores are {', '.join(FLOATS)}, {calibration.output!r} is {scores.datatype}")
    return calibration, scores


def why_not(error: Exception, model: str, version: str) -> str:
    """The reason why a reply is not calibrated, in a line for its client; in full in the log."""
    known = isinstance(error, CalibServeError)
    log.error(
        "%s:%s passes without calibration: %s", model, version, error, exc_info=None if known else error
    )
    told = str(error) if known else "the calibration failed"
    return "".join(sign if " " <= sign <= "~" else "?" for sign in told)[:200]


def of_another_body(headers: Headers) -> Headers:
    """The headers of a reply whose body was made anew, and which no cache may keep."""
    return [*without_headers(headers, *_OF_THE_BYTES, *_OF_CACHES), _NOT_KEPT]


def _json_length_of(headers: Headers, size: int) -> int | None:
    """Read the length of the JSON in a body of so many bytes, None where all of it is JSON."""
    told = at_most_one(headers, JSON_LENGTH)
    if not told:
        return None
    if not (told.isascii() and told.isdecimal() and len(told) < 12 and int(told) <= size):
        raise InputError(f"{JSON_LENGTH.decode()} must be at most the body's {size}, got {told[:20]!r}")
    return int(told)


def _with(headers: Headers, values: dict[bytes, bytes]) -> Headers:
    """The headers in their order, with these values; new headers come last."""
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
