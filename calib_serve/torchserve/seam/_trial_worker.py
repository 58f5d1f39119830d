"""The process that ``run_trial`` starts: finds and proves the seam of an archive's handler, or asks it.

``python -m calib_serve.torchserve.seam._trial_worker JOB RESULT`` runs one of three trials: ``look`` finds
and proves the seam of an archive's original handler, ``answer`` asks a calibrated archive the same requests,
``scores`` sends samples through the handler and keeps their scores.

The process ends with the one that started it, whose end of the pipe at its standard input is then closed, and
so do those that the handler started.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.data_files import map_npy
from calib_serve.core.errors import CalibServeError, ModelError
from calib_serve.scores import (
    EACH,
    PROBABILITIES,
    Form,
    Outputs,
    all_scores,
    as_json,
    class_count,
    exact,
    find_scores,
    infer_outputs,
    shown_as,
    to_logits,
)
from calib_serve.torchserve.seam._handler import (
    INFERENCE,
    Handler,
    PlaceRecorder,
    functions,
    is_network,
    is_session,
    load_handler,
    places,
    put_around,
    sigmoids,
)
from calib_serve.torchserve.seam._host import (
    Answer,
    Request,
    Ticks,
    alternatives,
    ask,
    context_of,
    random_requests,
    told,
    varied,
)
from calib_serve.torchserve.seam._proof import NotOneRow, NotPassed, Place, Seen, prove_batches, prove_reply

_REQUESTS = 4  # that differ, for the proof
_NOT_PASSED = "the request did not pass here"


def look(
    folder: Path,
    *,
    requests: Sequence[dict[str, str]] = (),
    others: Sequence[Sequence[dict[str, str]]] = (),
    shape: Sequence[int] | None = None,
    classes: int | None = None,
    seam: str | None = None,
    output: str | None = None,
    outputs: Outputs | None = None,
    batch_size: int = 1,
    progress: str,
) -> dict[str, Any]:
    """Find where the class scores pass, and their kind, with the evidence.

    ``requests``: one sample in the forms that it may be sent in, and ``others`` more samples in the same
    forms; without these, others are made from the one, and without any all are made up. Raises ModelError
    where no place is proved to be the one that the replies are made from.
    """
    handler, recorders, ctx = recorded(folder, seam, batch_size)
    tick = Ticks(progress)
    # A handler that takes arrays answers only those of its network's shape.
    shapes = [shape, *_guessed_shapes(handler)]
    tried = [Request.from_dict(held) for held in requests] or _made_up(shapes)
    chosen, bare, answer = _first_answer(handler, recorders, ctx, tried, given=bool(requests), tick=tick)

    def answered(batch: Sequence[Request]) -> Answer:
        tick()
        return ask(handler.handle, ctx, batch, bare=bare)

    # Places that hold scores by their numbers; which one the reply is made of is proved below.
    candidates, why = _candidates(recorders, classes, output, outputs, as_json(answer.replies[0]))
    own = set() if seam else recorders.keys() - set(places(handler))
    never = {} if seam else _never_there(handler, recorders, own)
    asked = [tried[chosen]]
    if others:
        asked += [Request.from_dict(forms[chosen]) for forms in others]
    elif requests:
        asked += [one for seed in range(1, 2 * _REQUESTS) if (one := varied(asked[0], seed)) is not None]
    else:
        asked += [_made_up(shapes, seed)[chosen] for seed in range(1, _REQUESTS)]
    for each in candidates:
        if each.name in never:
            continue
        place = Place(each.name, answered, recorders[each.name], each.form, each.kind, each.columns)
        try:
            place, known, alone = _alone(place, asked)
            # Other networks that the request passed: their scores may take part in the reply.
            beside = [
                name
                for name in dict.fromkeys(one.name for one in candidates)
                if name not in (each.name, INFERENCE) and not name.endswith(".forward")
            ]
            prove_reply(place, known, alone, beside, sure=each.name not in own)
        except ModelError as error:
            why[each.described] = str(error)
            continue
        # As TorchServe's own handlers read it from index_to_name.json.
        mapping = getattr(handler.subject, "mapping", None)
        place, batched, reason = _together(place, known[: max(2, batch_size)], alone, output)
        return {
            "place": each.name,
            "output": str(place.form),
            "kind": each.kind,
            "columns": each.columns,
            "padded": place.padded,
            "rows": alone.rows.tolist(),
            "requests": [request.as_dict() for request in known],
            "replies": alone.replies,
            "batched": [seen.rows.tolist() for seen in batched],
            "in_order": all(seen.in_order for seen in batched),
            "alone_because": reason,
            "form": chosen,
            "bare": bare,
            "handler": (handler.module.__name__ if handler.is_function else type(handler.subject).__name__),
            "places": list(recorders),
            "class_names": mapping if isinstance(mapping, dict) else None,
        }
    raise _no_place({**why, **never})


def _made_up(shapes: Sequence[Sequence[int] | None], seed: int = 0) -> list[Request]:
    return [request for one in shapes for request in random_requests(one, seed)]


def _never_there(handler: Handler, recorders: dict[str, PlaceRecorder], own: set[str]) -> dict[str, str]:
    """The reasons why some places hold no scores: late networks, and functions before a network."""
    last = max((one.began for name, one in recorders.items() if name not in own), default=0)
    before = {name: "a network comes behind it" for name in own if 0 < recorders[name].ended < last}
    late = "it is loaded with the first request, and not by initialize, as it has to be"
    return {**before, **{name: late for name in places(handler) if name not in recorders}}


def _alone(place: Place, requests: Sequence[Request]) -> tuple[Place, list[Request], Seen]:
    """Ask requests one by one, and keep the answered ones; find whether the handler pads its batch."""
    found: list[tuple[Request, Seen]] = []
    for request in requests:
        try:
            found.append((request, place.see([request])))
        except NotOneRow as error:
            if not error.padding(place, request, requests[-1]):
                raise
            place = replace(place, padded=True)
            found.append((request, place.see([request])))
        except NotPassed:
            continue  # it was asked before
        except ModelError:
            if not found:
                raise
        if len(found) == _REQUESTS:
            break
    if not found:
        raise NotPassed
    whole = Seen(
        np.concatenate([seen.rows for _, seen in found]),
        [reply for _, seen in found for reply in seen.replies],
    )
    half = place.form.is_half(place.recorder.returned[-1])
    return replace(place, half=half), [request for request, _ in found], whole


def _together(
    place: Place, requests: Sequence[Request], alone: Seen, output: str | None
) -> tuple[Place, list[Seen], str]:
    """Ask all requests at once; return the reason why that must not be done, if any."""
    forms, reason = [place.form], ""
    some = replace(alone, rows=alone.rows[: len(requests)], replies=alone.replies[: len(requests)])
    if output is None and not place.form.path:  # a list of one may hold rows, or outputs
        with suppress(ModelError):
            place.recorder.clear()
            place.ask(requests[:2])
            columns = max(2, place.columns)
            passed = {find_scores(value, columns)[0] for value in place.recorder.returned}
            forms = list(passed) if len(passed) == 1 else forms
    if EACH in place.form.path:
        forms.append(Form(tuple(0 if step == EACH else step for step in place.form.path)))
    for form in forms:
        try:
            placed = replace(place, form=form)
            return placed, prove_batches(placed, requests, some), ""
        except ModelError as error:
            reason = reason or str(error)
    return replace(place, form=forms[0]), [], reason


def recorded(
    folder: Path, seam: str | None, batch_size: int
) -> tuple[Handler, dict[str, PlaceRecorder], Any]:
    """Load the archive's handler with a recorder at the seam, or at every place that may be the seam.

    Returns it, the recorders by place, and the context that a worker would give it.
    """
    recorder, ctx = PlaceRecorder(), context_of(folder, batch_size=batch_size)
    handler = load_handler(ctx.manifest["model"]["handler"], inference=recorder)
    initialize(handler, ctx)
    recorders: dict[str, PlaceRecorder] = {}
    for name in [seam] if seam else [*places(handler), *functions(handler)]:
        recorders[name] = recorder if name == INFERENCE else PlaceRecorder()
        put_around(handler, name, recorders[name])
    return handler, recorders, ctx


def initialize(handler: Handler, ctx: Any) -> None:
    """Make a handler load its model; ModelError, which says why, where it does not."""
    try:
        handler.initialize(ctx)
    except CalibServeError:
        raise
    except (Exception, SystemExit) as error:  # a handler may raise anything
        raise ModelError(f"the handler does not load: {told(error)}") from error


def _first_answer(
    handler: Handler,
    recorders: dict[str, PlaceRecorder],
    ctx: Any,
    requests: Sequence[Request],
    *,
    given: bool,
    tick: Callable[[], None],
) -> tuple[int, bool, Answer]:
    """Find the first of ``requests`` that the handler answers, as itself or as a bare payload.

    Rather one that passes a recorder: some handlers answer what they do not understand with an error's text.
    """
    failures: dict[str, None] = {}
    answered = None
    for number, request in enumerate(requests):
        if request in requests[:number]:
            continue
        # As a dict that names the body, and as the payload alone, which is what an envelope passes on.
        for bare in (False, True):
            with sigmoids() as seen:
                for recorder in recorders.values():
                    recorder.clear(seen)
                tick()
                got = ask(handler.handle, ctx, [request], bare=bare)
            if not got.failure and any(recorder.returned for recorder in recorders.values()):
                return number, bare, got
            if not got.failure:
                answered = answered or (number, bare, got)
                continue
            failures[f"{request.content_type}{' (body alone)' if bare else ''}: {got.failure}"] = None
    if answered is not None:
        for recorder in recorders.values():
            recorder.clear()
        return answered
    what = (
        "the request that it was given:"
        if given
        else "any made-up request; give one it answers with --probe FILE:"
    )
    raise ModelError("\n  ".join([f"the handler did not answer {what}", *failures]))


class _Candidate(NamedTuple):
    """Scores of ``columns`` of a ``kind`` that passed the place ``name`` in this ``form``."""

    name: str
    form: Form
    kind: Outputs
    columns: int

    @property
    def described(self) -> str:
        """Name the place for a person."""
        return f"{self.name}, in {self.form}" if self.form.path else self.name


def _candidates(
    recorders: dict[str, PlaceRecorder],
    classes: int | None,
    output: str | None,
    outputs: Outputs | None,
    reply: Any,
) -> tuple[list[_Candidate], dict[str, str]]:
    """List the places where scores passed, the likeliest first; and the reasons against the others."""
    found, why = [], {}
    for place, recorder in recorders.items():
        if not recorder.returned:
            why[place] = _NOT_PASSED
            continue
        try:
            found_forms = [] if output is not None else all_scores(recorder.returned[0], classes)
            forms = [form for form, _ in found_forms] if output is None else [Form.parse(output)]
        except ModelError as error:
            why[place] = str(error)
            continue
        for form in forms:
            try:
                rows = np.concatenate([form.scores(one, classes).values for one in recorder.returned])
                found.append(_Candidate(place, form, _kind(recorder, rows, outputs, reply), rows.shape[1]))
            except (ModelError, ValueError) as error:
                why[f"{place}, in {form}" if form.path else place] = str(error)
    return found, why


def _no_place(why: dict[str, str]) -> ModelError:
    """Make the error that gives each place's reason."""
    reasons = {place: reason for place, reason in why.items() if reason != _NOT_PASSED}
    if len(set(reasons.values())) == 1:
        places_ = " nor at ".join(reasons)
        return ModelError(f"the class scores are not understood at {places_}: {next(iter(reasons.values()))}")
    return ModelError(
        "\n  ".join(
            [
                "found no place where the class scores pass; name one with --seam, a dotted path from the "
                "handler such as model or model.forward",
                *(f"at {place}: {reason}" for place, reason in (reasons or why).items()),
            ]
        )
    )


def _kind(recorder: PlaceRecorder, values: NDArray[np.float64], told: Outputs | None, reply: Any) -> Outputs:
    """The kind of the scores, by their values and their activations; ModelError if unknown.

    As ``told`` where nothing speaks against it: numbers alone tell logits of a label from those of a class no
    more than one row tells whether numbers within [0, 1] are logits.
    """
    columns = values.shape[1]
    may_be = _may_be(
        recorder.sigmoid(values), infer_outputs(values), shown_as(reply, values[0].tolist()), columns
    )
    told = told and exact(told, columns)
    if told in may_be:
        return told
    # Whether they are logits or probabilities is what matters, and must not be guessed.
    if len({kind in PROBABILITIES for kind in may_be}) == 1:
        return may_be[0]
    raise ModelError(
        f"its scores lie in [0, 1] and may be {' or '.join(may_be)}; say which with "
        + " or ".join(f"--outputs {kind}" for kind in may_be)
    )


def _may_be(
    sigmoid: Literal["before", "after"] | None,
    numbers: Outputs,
    shown: Literal["sigmoid", "softmax"] | None,
    columns: int,
) -> tuple[Outputs, ...]:
    """List the possible kinds of the scores, the likeliest first."""
    if sigmoid is None and shown == "sigmoid":
        sigmoid = "after"
    if columns == 1:
        logit: tuple[Outputs, ...] = ("logit", "label_logits")
        probability: tuple[Outputs, ...] = ("probability", "label_probabilities")
        if sigmoid is not None:
            return probability if sigmoid == "before" else logit
        return (*logit, "log_probs") if numbers == "logit" else (*logit, *probability)
    if sigmoid is not None:
        return ("label_probabilities",) if sigmoid == "before" else ("label_logits",)
    if numbers == "logits":
        return ("logits",) if shown == "softmax" else ("logits", "label_logits")
    if numbers == "label_probabilities":
        return ("label_probabilities", "label_logits", "logits")
    return ("probabilities", "label_probabilities") if numbers == "probabilities" else (numbers,)


def _guessed_shapes(handler: Handler) -> Iterator[list[int]]:
    """Yield shapes of one input that the first layer of the handler's network may take."""
    networks = [v for v in vars(handler.subject).values() if is_network(v)]
    for parameter in next((network.parameters() for network in networks), ()):
        if parameter.ndim == 4:
            yield from ([parameter.shape[1], size, size] for size in (28, 32, 64, 224))
        elif parameter.ndim == 2:
            yield [parameter.shape[1]]
        else:
            continue
        return
    for session in filter(is_session, vars(handler.subject).values()):
        for taken in session.get_inputs()[:1]:
            yield [size if isinstance(size, int) else -1 for size in taken.shape[1:]]


# --- The trials -------------------------------------------------------------------------------------


def answer(
    folder: Path, *, batches: Sequence[Sequence[dict[str, str]]], bare: bool, progress: str
) -> list[dict[str, Any]]:
    """Ask a calibrated archive's handler each batch of requests; return its replies and headers."""
    ctx = context_of(folder, batch_size=max(map(len, batches)))
    handler = load_handler(ctx.manifest["model"]["handler"])
    initialize(handler, ctx)
    tick, found = Ticks(progress), []
    for batch in batches:
        tick()
        got = ask(handler.handle, ctx, [Request.from_dict(held) for held in batch], bare=bare)
        if got.failure:
            raise ModelError(got.failure)
        found.append({"replies": [as_json(reply) for reply in got.replies], "headers": list(got.headers)})
    return found


@dataclass(frozen=True, eq=False)
class _Samples:
    """The samples to send: ``files``, or ``rows`` (n, ...); ``form``: the number among ``alternatives``."""

    files: Sequence[str]
    rows: NDArray[Any] | None
    form: int

    def __len__(self) -> int:
        return len(self.files) if self.rows is None else len(self.rows)

    def request(self, i: int) -> Request:
        """Make sample ``i`` as a worker receives it."""
        return alternatives(Path(self.files[i]) if self.rows is None else self.rows[i])[self.form]

    def called(self, batch: Sequence[int]) -> str:
        """Name the samples of a batch, for a person."""
        names = [self.files[i] if self.rows is None else f"row {i}" for i in batch[:3]]
        return ", ".join(names) + (f" and {len(batch) - 3} more" if len(batch) > 3 else "")


def collect(
    folder: Path,
    *,
    files: Sequence[str] = (),
    rows: str | None = None,
    form: int = 0,
    out: str,
    seam: str,
    output: str,
    kind: Outputs,
    columns: int,
    padded: bool,
    bare: bool,
    batch_size: int = 1,
    progress: str,
) -> dict[str, Any]:
    """Send ``files``, or the rows of the .npy ``rows``, in batches; write the logits (n, K) at the seam.

    ``out`` becomes an .npy of float32; K is 2 for one column, but of labels. ``progress``: a file that
    says how many are done. Raises ModelError, which names the sample, where the handler fails on
    one, or where it is not known which scores are whose.
    """
    handler, recorders, ctx = recorded(folder, seam, batch_size)
    recorder = recorders[seam]
    samples = _Samples(files, None if rows is None else map_npy(Path(rows)), form)
    tick = Ticks(progress)

    def logits_of(batch: range) -> NDArray[np.float32]:
        requests = [samples.request(i) for i in batch]
        recorder.clear([])
        got = ask(handler.handle, ctx, requests, bare=bare)
        if got.failure:
            alone = [ask(handler.handle, ctx, [request], bare=bare).failure for request in requests]
            raise ModelError(_failed(samples, batch, alone, got.failure))
        try:
            return _logits(recorder, Form.parse(output), kind, columns, len(batch), padded=padded)
        except ModelError as error:
            raise ModelError(f"{samples.called(batch)}: {error}") from error

    n = len(samples)
    # Not a memory map: of a full disk a write says so, a map ends the process.
    with Path(out).open("wb") as written:
        header = {
            "descr": "<f4",
            "fortran_order": False,
            "shape": (n, class_count(kind, columns)),
        }
        np.lib.format.write_array_header_1_0(written, header)
        for start in range(0, n, batch_size):
            batch = range(start, min(start + batch_size, n))
            logits = logits_of(batch)
            try:
                written.write(logits.tobytes())
            except OSError as error:
                raise ModelError(f"cannot keep the scores of {n} samples: {error}") from error
            tick(batch.stop, n)
    return {"rows": n}


def _failed(samples: _Samples, batch: range, alone: Sequence[str], together: str) -> str:
    for i, failure in zip(batch, alone, strict=True):
        if failure:
            return f"the handler failed on {samples.called([i])}: {failure}"
    return (
        f"the handler answers {samples.called(batch)} one at a time and not together: {together}; "
        "try --batch-size 1"
    )


def _logits(
    recorder: PlaceRecorder, place: Form, kind: Outputs, columns: int, samples: int, *, padded: bool
) -> NDArray[np.float32]:
    """The scores of one batch as logits (n, K); ModelError where it is not one row a sample."""
    found = [place.scores(value, max(2, columns)).values for value in recorder.returned]
    found = [one[:samples] for one in found] if padded and len(found) == 1 else found
    count = sum(map(len, found))
    if count != samples or (len(found) > 1 and recorder.elsewhere):
        raise ModelError(
            f"{count} rows of scores passed the seam in {len(found)} calls for {samples} samples: which "
            "sample each row is of is not known; try --batch-size 1"
        )
    values = np.concatenate(found)
    if kind == "probabilities" and np.isfinite(values).all() and infer_outputs(values) != kind:
        raise ModelError("probabilities are expected here as on the first sample; its scores are others")
    with np.errstate(over="ignore"):
        logits = to_logits(values, kind).astype("<f4")
    if not np.isfinite(logits).all():
        bad = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise ModelError(f"the scores {values[bad][:5].tolist()} are not finite {kind}")
    return logits


TRIALS: dict[str, Callable[..., Any]] = {"look": look, "answer": answer, "scores": collect}


def main(order: str, result: str) -> None:
    """Run the trial that the file ``order`` describes, and write its result to ``result``."""
    job = json.loads(Path(order).read_text("utf-8"))
    trial, folder = TRIALS[job.pop("what")], Path(job.pop("folder"))
    # Kept under another number: the handler may read or close its standard input.
    pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what a handler reads
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    try:
        outcome = {"result": trial(folder, **job)}
    except CalibServeError as error:
        outcome = {"error": str(error)}
    Path(result).write_text(json.dumps(outcome), "utf-8")
    sys.stdout.flush()
    os._exit(0)  # threads of the handler's, such as micro-batching's, would keep the process


def _end_with_parent(pipe: int) -> None:
    """Wait until the other end of the pipe is closed, then end this process's group."""
    os.read(pipe, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
