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
from typing import Any

from calib_serve.core.errors import ModelError
from calib_serve.torchserve._channel import wait_until_counted

_READ_BY_US = ("body", "json", "kserve", "kservev2")
"""The envelopes whose requests :mod:`calib_serve.torchserve._requests` reads."""


class WorkerHandler:
    """The handler that TorchServe makes, initializes and calls; a subclass answers a batch in ``answer``."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Make the handler, and put it before the envelope that the server makes of it before initialize."""
        handler = super().__new__(cls)  # not in __init__: a subclass's may not call ours
        handler._envelope, handler._restore = None, lambda: None
        if "ts" not in sys.modules:
            return handler  # not within TorchServe
        from ts.torch_handler.request_envelope.base import BaseEnvelope  # noqa: PLC0415

        made = BaseEnvelope.__init__

        def init(envelope: Any, handle_fn: Any) -> None:
            made(envelope, handler.inner)
            envelope.handle = handler.handle  # what the server calls
            handler._envelope = envelope

        BaseEnvelope.__init__ = init
        handler._restore = lambda: setattr(BaseEnvelope, "__init__", made)
        return handler

    _envelope: Any
    _restore: Callable[[], object]
    _ending: Ending
    _worker: str

    def answer(self, data: Sequence[Any], ctx: Any) -> Any:
        """The replies to a batch of the server's requests."""
        raise NotImplementedError

    def inner(self, data: Sequence[Any], ctx: Any) -> Any:
        """Answer the requests that an envelope has read; only a handler with an envelope has any."""
        raise ModelError("the requests of this handler are read by no envelope")

    def handle(self, data: Sequence[Any], ctx: Any) -> Any:
        """Answer TorchServe."""
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
        self._restore()
        return self._envelope

    def without_envelope(self) -> None:
        """Take the envelope's place; ModelError for an envelope whose requests we cannot read."""
        envelope = self.envelope()
        name = type(envelope).__module__.rpartition(".")[2]
        if envelope is not None and name not in _READ_BY_US:
            raise ModelError(
                f"calibrated models read the requests of the envelopes {', '.join(_READ_BY_US)}, not of "
                f"{name}; remove service_envelope from config.properties"
            )


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
        end = now + 30.0  # then it exits even during a prediction
        while now < end:
            if self._busy or self._has_sent():
                quiet_since = now
            elif now - quiet_since > 1.0:  # longer than a batch waits for requests
                self._settle()
                if not self._busy and not self._has_sent():
                    break
            time.sleep(0.2)
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
