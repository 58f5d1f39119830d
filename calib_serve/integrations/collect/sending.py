"""Send a file of labels in batches; a label counted before is a duplicate, so repeating is safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from calib_serve.core.errors import InputError, Rejected
from calib_serve.core.files import write_atomically
from calib_serve.core.options.base import changed
from calib_serve.core.options.label import LabelColumns, LabelOptions, SentLabels
from calib_serve.integrations.collect.reading import DeadLetter, read_label_rows
from calib_serve.receipts import in_batches, post_batch, row_size

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import LabelKeywords

SETTLED = frozenset({"duplicate", "not_wanted"})
"""Why a label is refused where nobody has to look."""

BATCH = 1000
"""Labels of a request."""

_TOO_MUCH = (400, 413, 422)  # of a batch: then one of its labels is to blame, or there are too many

Outcomes = list[dict[str, Any]]


@dataclass
class Sent:
    """The outcomes of labels; safe to read at any time.

    Args:
        accepted: Number of counted ones.
        held: Number of those that wait in the watch for a day, until it is told of their model version.
        refused: Number of refused ones by reason.
        wrong: Number of refused ones that a person must look at: they are dead letters.
        waiting: Number of those that wait here to be tried again.
        first: First few dead letters; all are in the file of the refused, or their topic.
    """

    accepted: int = 0
    held: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    waiting: int = 0
    first: list[DeadLetter] = field(default_factory=list)

    def __str__(self) -> str:
        """A summary for people."""
        refused = ", ".join(f"{count} {reason}" for reason, count in self.refused.most_common())
        told = [f"{self.accepted} counted"]
        told += [f"{self.held} wait for their model version to be watched"] * bool(self.held)
        told += [f"refused: {refused}"] * bool(refused) + [f"{self.waiting} wait"] * bool(self.waiting)
        return "; ".join(told)

    def named(self, refused: str | Path | None = None) -> list[str]:
        """The first rows that a person must look at, a line each, and where the others are."""
        told = [f"{one.where}: {one.reason}: {one.message}" for one in self.first]
        if refused is not None and self.wrong:
            told.append(f"{refused} holds what was refused: mend it, and send it")
        elif self.wrong > len(self.first):
            told.append(f"and {self.wrong - len(self.first)} more, which --refused FILE writes")
        return told

    def note(self, outcome: dict[str, Any], settled: frozenset[str] = SETTLED) -> bool:
        """Count the outcome of a label; whether it is settled, else it is a dead letter.

        Args:
            outcome: As the watch told it.
            settled: Reasons of refusals that settle a label.
        """
        if outcome["accepted"]:
            self.held += bool(outcome.get("held"))
            self.accepted += not outcome.get("held")
            return True
        if (reason := str(outcome["reason"])) in settled:
            self.refused[reason] += 1
        return reason in settled

    def bury(self, letter: DeadLetter) -> None:
        """Count a dead letter."""
        self.refused[letter.reason] += 1
        self.wrong += 1
        if len(self.first) < 10:  # rows that are named where no file is asked for
            self.first.append(letter)


class _Label(NamedTuple):
    row: dict[str, Any]
    where: str


def send_label_file(
    path: str | Path,
    options: LabelOptions | None = None,
    *,
    token: str = "",
    progress: Callable[[int, int | None], None] = lambda _done, _total: None,
    **keywords: Unpack[LabelKeywords],
) -> Sent:
    """Send the labels of a file; safe to repeat.

    Args:
        path: A CSV, Parquet or JSON lines file with a column of receipts, or one of ``id``, the user's own of
            predictions (and ``model``, where those of two models have one id), one of labels (class ids or
            names) and, if wanted, ``segment``.
        options: A ``LabelOptions``; keywords replace its fields.
        token: A token of the scope label, where the watch asks for one.
        progress: Called with how many rows were read, and of how many, where that is known.
        **keywords: Fields of ``LabelOptions``: ``by``, ``id_column``, ``label_column``, ``receipt_column``,
            ``refused``, ``replaces``, ``url``.

    Raises:
        InputError: Where the file is no table of labels.
        ServerError: Where a request failed or was refused as a whole; then no file of the refused is written.
    """
    asked = changed(options or LabelOptions(), keywords, send_label_file)
    sent, done = Sent(), 0

    def post(rows: list[dict[str, Any]]) -> Outcomes:
        return post_batch(asked.url, of_batch(rows, asked), token=token).items

    try:
        with _lines_of(asked.refused) as file:

            def bury(letter: DeadLetter) -> None:
                sent.bury(letter)
                if file is not None:
                    file.write(letter.json() + b"\n")

            for some in in_batches(
                _labels(Path(path), asked, bury), lambda one: row_size(one.row), most=BATCH
            ):
                outcomes = post_in_parts(post, [one.row for one in some])
                for one, outcome in zip(some, outcomes, strict=True):
                    if not sent.note(outcome):
                        why, told = str(outcome["reason"]), str(outcome.get("message", ""))
                        bury(DeadLetter(why, told, one.where, item=one.row))
                done += len(some)
                progress(done, None)
    except OSError as error:
        raise InputError(f"cannot read {path}, or write what is refused: {error}") from error
    return sent


def _labels(path: Path, columns: LabelColumns, bury: Callable[[DeadLetter], None]) -> Iterator[_Label]:
    for row in read_label_rows(path, columns):
        for letter in row.dead:
            bury(letter)
        for label in row.labels:
            yield _Label(label, row.where)


@contextmanager
def _lines_of(path: str | Path | None) -> Iterator[IO[bytes] | None]:
    """Open a file that takes its place only if all went well: it may be the one that is read."""
    if path is None:
        yield None
        return
    with write_atomically(Path(path), mode=0o600) as partial, partial.open("wb") as file:
        yield file


def of_batch(rows: Sequence[dict[str, Any]], options: SentLabels) -> dict[str, Any]:
    """The body of a request with these rows."""
    return {"items": rows, "replaces": True} if options.replaces else {"items": rows}


def post_in_parts(
    post: Callable[[list[dict[str, Any]]], Outcomes], rows: Sequence[dict[str, Any]]
) -> Outcomes:
    """Send ``rows``, in halves where the watch refuses them together; return the outcome of each.

    Raises Rejected where it would not take an empty batch either: then no row is to blame.
    """
    try:
        return post(list(rows))
    except Rejected as error:
        if error.status not in _TOO_MUCH:
            raise
        post([])
        return _halves(post, rows, error)


def _halves(
    post: Callable[[list[dict[str, Any]]], Outcomes], rows: Sequence[dict[str, Any]], error: Rejected
) -> Outcomes:
    if len(rows) == 1:
        return [{"accepted": False, "reason": "malformed", "message": str(error)}]
    found: Outcomes = []
    for some in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        try:
            found += post(list(some))
        except Rejected as again:
            found += _halves(post, some, again)
    return found
