"""The base of our TorchServe handlers: requests before any envelope, and an end that loses no reply.

An envelope (``service_envelope`` in config.properties) is set for every model of a server, whatever its
archive says. It fails on requests of another form, and KServe's read the first request of a batch alone. So
our handlers read requests as they came; one around somebody else's handler asks the envelope for the replies.

When a worker's connection closes, the server kills the worker and stops reading its output. So metrics must
be sent and counted while the connection is still open. Requests that the server has taken from its queue for
a worker that leaves are never answered, and it takes the next ones right after a reply. So after SIGTERM the
worker sends its reply itself and closes the connection at once, before the server takes the next requests.
An idle worker leaves after a second without a request.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.errors import ModelError
from calib_serve.receipts import LabelChoice, SignedReceipt, Tag, count_choices
from calib_serve.scores import to_logits
from calib_serve.torchserve._observer import Observer, observe, wait_until_counted
from calib_serve.torchserve.mar_options import ModelOptions

_READ_BY_US = ("body", "json", "kserve", "kservev2")
"""The envelopes whose requests :mod:`calib_serve.torchserve._requests` reads."""

_PATIENCE = 30.0  # seconds after which a worker exits even during a prediction
_QUIET = 1.0  # seconds without a request after which a worker exits: more than a batch waits for requests
_STEP = 0.2  # seconds between looks


class WorkerHandler:
    """The handler that TorchServe makes, initializes and calls; a subclass answers a batch in ``answer``."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Make the handler, and put it before the server's envelope."""
        handler = super().__new__(cls)  # not in __init__: a subclass's may not call ours
        handler._front = _Front(handler)
        return handler

    _front: _Front
    _ending: Ending
    _worker: str

    def answer(self, data: Sequence[Any], ctx: Any) -> Any:
        """The replies to a batch of the server's requests."""
        raise NotImplementedError

    def inner(self, data: Sequence[Any], ctx: Any) -> Any:
        """Answer the requests that an envelope has read; only a handler with an envelope has any.

        Args:
            data: Names to values, one dict a request.
            ctx: TorchServe's context.
        """
        raise ModelError("the requests of this handler are read by no envelope")

    def handle(self, data: Sequence[Any], ctx: Any) -> Any:
        """Answer TorchServe.

        Args:
            data: Names to values, one dict a request.
            ctx: TorchServe's context.
        """
        self._ending.begin(ctx)
        try:
            replies = self.answer(data, ctx)
            for index in range(len(ctx.request_processor)):
                # A client's log then says which worker answered.
                ctx.set_response_header(index, "x-calib-worker", self._worker)
                _end_stream(ctx, index)
        except BaseException:
            self._ending.done()
            raise
        return self._ending.sent(replies, ctx)

    def started(self, flush: Callable[[], object]) -> None:
        """Listen for SIGTERM, once all is loaded; ``flush`` sends the counts before the worker ends."""
        self._worker = str(os.getpid())
        self._ending = Ending(flush)
        self._ending.listen()

    def envelope(self) -> Any:
        """The envelope that TorchServe made for this handler, or None; call it in ``initialize``."""
        return self._front.found()

    def without_envelope(self) -> None:
        """Take the envelope's place; ModelError for an envelope whose requests we cannot read."""
        envelope = self.envelope()
        name = type(envelope).__module__.rpartition(".")[2]
        if envelope is not None and name not in _READ_BY_US:
            raise ModelError(
                f"calibrated models read the requests of the envelopes {', '.join(_READ_BY_US)}, not of "
                f"{name}; remove service_envelope from config.properties"
            )


class _Front:
    """Puts a handler before the envelope that TorchServe makes of it, between making and initializing it."""

    def __init__(self, handler: WorkerHandler) -> None:
        self._envelope: Any = None
        self._restore: Callable[[], object] = lambda: None
        if "ts" not in sys.modules:
            return  # not within TorchServe
        from ts.torch_handler.request_envelope.base import BaseEnvelope  # noqa: PLC0415

        made = BaseEnvelope.__init__

        def init(envelope: Any, handle_fn: Any) -> None:
            made(envelope, handler.inner)
            envelope.handle = handler.handle  # what the server calls
            self._envelope = envelope

        BaseEnvelope.__init__ = init
        self._restore = lambda: setattr(BaseEnvelope, "__init__", made)

    def found(self) -> Any:
        """The envelope, or None."""
        self._restore()
        return self._envelope


def check_requests(data: Sequence[Any], ctx: Any) -> None:
    """Fail the whole batch, with a sentence, where ``data`` are not the server's requests, one dict each.

    They are not where an envelope is still in place, as another TorchServe makes envelopes in another way.
    """
    if not data or (len(data) == len(ctx.request_processor) and all(isinstance(row, dict) for row in data)):
        return
    from ts.utils.util import PredictionException  # noqa: PLC0415 - only there in a worker

    raise PredictionException(
        "this TorchServe's service_envelope hides requests from the calibrated model; remove it from "
        "config.properties: the model reads all protocols without it",
        501,
    )


def _end_stream(ctx: Any, index: int) -> None:
    """Mark a gRPC reply as its stream's last: without the mark, StreamPredictions ends the worker."""
    headers = ctx.get_all_request_header(index)
    # Over HTTP, where the reply would become a stream by it, there always is a text among them.
    if "explain" not in headers and not any(isinstance(value, str) for value in headers.values()):
        ctx.set_response_header(index, "ts_stream_next", "false")


class Ending:
    """The end of this worker after SIGTERM, see above; ``flush`` sends its counts."""

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._asked, self._busy = False, False
        self._connection: socket.socket | None = None

    def listen(self) -> None:
        """End on SIGTERM; flush at the exit, too, as the server may have exited first."""
        atexit.register(self._flush)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: self.ask())

    def ask(self) -> None:
        """End once the batch in hand is answered."""
        if not self._asked:
            self._asked = True
            threading.Thread(target=self._leave_when_idle, name="calib-ending", daemon=True).start()

    def begin(self, ctx: Any) -> None:
        """Note that a batch is in hand."""
        self._busy, self._connection = True, getattr(ctx, "cl_socket", None)

    def done(self) -> None:
        """Note that the batch is answered."""
        self._busy = False

    def sent(self, replies: Any, ctx: Any) -> Any:
        """Leave ``replies`` for TorchServe to send; after SIGTERM, send them here and exit."""
        if self._asked and isinstance(replies, list) and len(replies) == len(ctx.request_processor):
            from ts.protocol.otf_message_handler import create_predict_response  # noqa: PLC0415

            self._settle()
            message = create_predict_response(replies, ctx.request_ids, "", 200, context=ctx)
            # Without a connection another process of the model sends it.
            if self._connection is not None and message is not None:
                self._connection.sendall(message)
                self._connection.shutdown(socket.SHUT_RDWR)  # the next request goes to another worker
                sys.exit(0)  # not a crash: the server starts another worker
        self.done()
        return replies

    def _leave_when_idle(self) -> None:
        now = quiet_since = time.monotonic()
        end = now + _PATIENCE
        while now < end:
            if self._busy or self._has_sent():
                quiet_since = now
            elif now - quiet_since > _QUIET:
                self._settle()
                if not self._busy and not self._has_sent():
                    break
            time.sleep(_STEP)
            now = time.monotonic()
        else:
            self._settle()
        if self._busy or self._connection is None:
            os._exit(0)
        self._connection.shutdown(socket.SHUT_RDWR)  # TorchServe's loop sees it, and ends the process

    def _has_sent(self) -> bool:
        """Whether unread data from the server are waiting."""
        return self._connection is not None and bool(select.select([self._connection], [], [], 0)[0])

    def _settle(self) -> None:
        self._flush()
        wait_until_counted()


# --- From scores to predictions ---------------------------------------------------------------------


class RowDecisions(NamedTuple):
    """A set's class ids, likeliest first; whether to abstain; whether the prediction may be acted on.

    None where not decided.
    """

    in_set: tuple[int, ...] | None = None
    abstain: bool | None = None
    act: bool | None = None


NOTHING = RowDecisions()


@dataclass(frozen=True, eq=False)
class Prediction:
    """One prediction.

    Args:
        probabilities: Calibrated, (K,) float64.
        predicted: Class id.
        confidence: Probability of the predicted class.
        logits: Logits of the probabilities (K,).
        receipt: None if receipts are off.
        decisions: The classes in its set, whether to abstain and whether it may be acted on, where the
            artifact or the archive says so.
    """

    probabilities: NDArray[np.float64]
    predicted: int
    confidence: float
    logits: NDArray[Any]
    receipt: SignedReceipt | None = None
    decisions: RowDecisions = NOTHING


@dataclass(frozen=True, eq=False)
class LabelsPrediction:
    """One prediction of a multi-label model.

    Args:
        probabilities: Calibrated, (L,) float64.
        predicted: Labels whose probability is the archive's threshold or more.
        choices: Those of labels that receipts are for.
        logits: Logits of the probabilities (L,).
    """

    probabilities: NDArray[np.float64]
    predicted: tuple[int, ...]
    choices: Sequence[LabelChoice]
    logits: NDArray[Any]


@dataclass(frozen=True)
class Failure:
    """Why one item has no prediction.

    Args:
        status: HTTP status.
        reason: In words, which are shown to the client.
    """

    status: int
    reason: str


INVALID = Failure(500, "the model's output for this input is NaN or infinite")


class Row(NamedTuple):
    """One row's calibrated probabilities (K,), and its logits (K,)."""

    probs: NDArray[np.float64]
    logits: NDArray[Any]


AnyPrediction = Union[Prediction, LabelsPrediction]
Result = Union[AnyPrediction, Failure]
T = TypeVar("T")


def all_or_none(rows: Sequence[T | Failure]) -> list[T | Failure]:
    """Fail a request of several rows by its worst failure, as it has one status; else return the rows.

    >>> all_or_none([1, Failure(500, "no"), Failure(400, "too short")])
    [Failure(status=400, reason='instance 2: too short')]
    """
    failures = [(row.status, i, row.reason) for i, row in enumerate(rows) if isinstance(row, Failure)]
    if not failures:
        return list(rows)
    status, i, reason = min(failures)  # errors of the client, which it can mend, come first
    return [Failure(status, f"instance {i}: {reason}")]


class CalibratedHandler(WorkerHandler):
    """A handler of an archive that ``calib-serve pack`` wrote.

    ``options``, ``artifact``, ``name`` and ``version`` are set before the model is loaded.
    """

    options: ModelOptions
    artifact: Artifact
    name: str
    version: str

    _observer: Observer

    def initialize(self, ctx: Any) -> None:
        """Load the calibration and the model, and start the counters at 0."""
        folder = Path(ctx.system_properties["model_dir"])
        self.options = ModelOptions.read(ctx.model_yaml_config or {})
        self.artifact = Artifact.load(folder / self.options.artifact)
        self.options.check_artifact(self.artifact)
        self.name = str(ctx.manifest["model"]["modelName"])
        self.version = str(ctx.manifest["model"]["modelVersion"])
        self.load(folder, ctx)
        self._observer = observe(
            self.options, self.artifact, model=self.name, version=self.version, folder=folder
        )
        self.started(self._observer.flush)

    def load(self, folder: Path, ctx: Any) -> None:
        """Load the model of the archive unpacked in ``folder``."""
        raise NotImplementedError

    def calibrated(self, scores: NDArray[Any]) -> tuple[list[Row | Failure], NDArray[np.float64]]:
        """Calibrate scores to rows and probabilities (n, K); a row that is not finite becomes INVALID.

        Args:
            scores: Scores of the model, (n, K), (n,) or (n, 1).
        """
        # The common batch has no NaN, and takes the short way.
        logits = to_logits(scores, self.options.outputs)
        if np.isfinite(logits).all():
            probs = self.artifact.of_logits(logits)
            return list(map(Row, probs, logits)), probs
        finite = np.asarray(np.isfinite(logits).all(axis=1))
        probs = self.artifact.of_logits(np.where(finite[:, None], logits, 0.0))
        rows = zip(probs, logits, finite.tolist(), strict=True)
        return [Row(p, z) if ok else INVALID for p, z, ok in rows], probs

    def predictions(
        self, rows: Sequence[Row | Failure], tags: Sequence[Tag] = (), *, invalid: int | None = None
    ) -> list[Result]:
        """Count, sign and decide on the rows; a failure stays in its place.

        Args:
            rows: Calibrated rows, or failures.
            tags: Tags of each row; empty: they have none.
            invalid: Number of rows that the model gave no numbers for, where some of them are not among
                these; None: those that are.
        """
        if invalid is None:
            invalid = sum(row is INVALID for row in rows)
        made = [row for row in rows if not isinstance(row, Failure)]
        if not any(map(any, tags)):
            tags = ()  # receipts of these are signed faster
        if len(made) < len(rows) and tags:
            tags = [tag for tag, row in zip(tags, rows, strict=True) if not isinstance(row, Failure)]
        of_rows = self._of_labels if self.artifact.is_multilabel else self._of_classes
        found = of_rows(made, tags, invalid)
        if len(made) == len(rows):
            return list(found)
        rest = iter(found)
        return [row if isinstance(row, Failure) else next(rest) for row in rows]

    def _of_classes(self, rows: Sequence[Row], tags: Sequence[Tag], invalid: int) -> Sequence[AnyPrediction]:
        top = [int(row.probs.argmax()) for row in rows]
        pairs = [(k, min(float(row.probs[k]), 1.0)) for row, k in zip(rows, top, strict=True)]
        receipts = self._observer.served(
            pairs, logits=[row.logits for row in rows], tags=tags, invalid=invalid
        )
        found = row_decisions(
            self.artifact,
            [row.probs for row in rows],
            abstain_below=self.options.abstain_below,
            segments=[tag.segment for tag in tags] or "",
        )
        return [
            Prediction(row.probs, k, confidence, row.logits, receipt, decisions)
            for row, (k, confidence), receipt, decisions in zip(rows, pairs, receipts, found, strict=True)
        ]

    def _of_labels(self, rows: Sequence[Row], tags: Sequence[Tag], invalid: int) -> Sequence[AnyPrediction]:
        threshold = self.options.threshold
        found = count_choices(
            self._observer, [row.probs for row in rows], threshold=threshold, tags=tags, invalid=invalid
        )
        return [
            LabelsPrediction(
                row.probs, tuple(np.flatnonzero(row.probs >= threshold).tolist()), one, row.logits
            )
            for row, one in zip(rows, found, strict=True)
        ]


def row_decisions(
    artifact: Artifact,
    probs: Sequence[NDArray[np.float64]],
    *,
    abstain_below: float | None = None,
    segments: str | Sequence[str] = "",
) -> list[RowDecisions]:
    """Decide by calibrated probabilities, each (K,), as artifact and archive (``abstain_below``) say.

    ``segments`` of each, or of all: what may be acted on there may depend on them.
    """
    # Most archives decide nothing: then there is no array to stack.
    rules = (artifact.sets, artifact.abstain, abstain_below, artifact.contract)
    if not probs or all(rule is None for rule in rules):
        return [NOTHING] * len(probs)
    p = np.stack(probs)
    sets: Sequence[Any] = [None] * len(p)
    if artifact.sets is not None:
        inside = artifact.sets(p)
        sets = [_likeliest_first(row, np.flatnonzero(of)) for row, of in zip(p, inside, strict=True)]
    below: Sequence[Any] = [None] * len(p)
    if artifact.abstain is not None:
        below = artifact.abstain(p).tolist()
    elif abstain_below is not None:
        below = (p.max(axis=1) < abstain_below).tolist()
    acts: Sequence[Any] = [None] * len(p)
    if artifact.contract is not None and artifact.contract.has_acts:
        acts = artifact.contract.acts(p.max(axis=1), p.argmax(axis=1), segments).tolist()
    return [RowDecisions(*one) for one in zip(sets, below, acts, strict=True)]


def _likeliest_first(probs: NDArray[np.float64], ids: NDArray[np.intp]) -> tuple[int, ...]:
    return tuple(ids[np.argsort(-probs[ids], kind="stable")].tolist())
