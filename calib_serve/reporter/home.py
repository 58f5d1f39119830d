"""Where predictions are counted and labels are sent: ``calib-serve watch``, or a Watch of this process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from calib_serve.errors import LedgerError, Refused, ServerError
from calib_serve.watch.batch import ServedReceipt
from calib_serve.watch.intake import Outcome
from calib_serve.watch.sender import Unanswered, post_body, post_items
from calib_serve.watch.service import Watch

__all__ = ["Home", "Remote", "Served", "Within", "home_of"]

_ANSWER_SECONDS = 10.0  # in which a watch answers, or the batch is sent again


class Served(NamedTuple):
    """One prediction to count: its receipt, the caller's own id of it, and its logits."""

    receipt: str
    id: str = ""
    logits: tuple[float, ...] | None = None

    def as_item(self) -> dict[str, Any]:
        """As the watch takes it."""
        item: dict[str, Any] = {"receipt": self.receipt}
        if self.id:
            item["id"] = self.id
        return item if self.logits is None else {**item, "logits": self.logits}


class Home(Protocol):
    """Takes predictions and labels; what it acknowledges is in the ledger."""

    def predictions(self, batch: Sequence[Served | str], *, once: str) -> list[Outcome]:
        """Count them, once under this name; those that are refused. A text is a receipt alone.

        Raises Unanswered where they may be sent again, else ServerError.
        """

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Count labels; what became of each. ServerError where that failed: send them again."""


class Remote:
    """A ``calib-serve watch`` at ``url``, with a token of the scopes ``predict`` and ``label``."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url, self._token = url.rstrip("/"), token

    def predictions(self, batch: Sequence[Served | str], *, once: str) -> list[Outcome]:
        """See Home."""
        if any(isinstance(one, Served) for one in batch):
            items = [one.as_item() if isinstance(one, Served) else {"receipt": one} for one in batch]
            body = json.dumps({"items": items})
        else:  # receipts need no escapes; this thread takes its time from the one that serves
            body = '{"items":[{"receipt":"' + '"},{"receipt":"'.join(map(str, batch)) + '"}]}'
        url = f"{self._url}/v1/predictions"
        how: dict[str, Any] = {"token": self._token, "tries": 1, "seconds": _ANSWER_SECONDS, "once": once}
        found = post_body(url, body.encode(), count=len(batch), **how)
        return [_outcome(one) for one in found if not one["accepted"]]

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """See Home."""
        how: dict[str, Any] = {"token": self._token, "tries": 3, "seconds": _ANSWER_SECONDS}
        return [_outcome(one) for one in post_items(f"{self._url}/v1/labels", items, **how)]


def _outcome(told: Mapping[str, Any]) -> Outcome:
    return Outcome(bool(told["accepted"]), told.get("reason"), str(told.get("message", "")))


class Within:
    """A Watch of this process."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def predictions(self, batch: Sequence[Served | str], *, once: str) -> list[Outcome]:
        """See Home."""
        items = [ServedReceipt(*one) if isinstance(one, Served) else ServedReceipt(one) for one in batch]
        try:
            found = self._watch.predictions(items, once=once.encode(), source="reporter")
        except LedgerError as error:
            raise Unanswered(f"the ledger cannot keep the predictions: {error}") from error
        return [Outcome(False, one.reason, str(one)) for one in found if isinstance(one, Refused)]

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """See Home."""
        try:
            return self._watch.labels(items)
        except LedgerError as error:
            raise ServerError(f"the ledger cannot keep the labels: {error}; send them again") from error


def home_of(watch: str | Watch, token: str = "") -> Home:
    """The home at a URL, or in this process."""
    return Remote(watch, token) if isinstance(watch, str) else Within(watch)
