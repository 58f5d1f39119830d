"""The seam of an archive's handler, found by asking it: where class scores pass, and of which kind.

What is found may still be wrong of requests that were not tried, so that every later reply is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import CalibServeError, ModelError
from calib_serve.scores import (
    EACH,
    LABELS,
    Form,
    Outputs,
    all_scores,
    exact,
    find_scores,
    proved,
    refuted,
    to_probs,
)
from calib_serve.torchserve.declared import DECLARED
from calib_serve.torchserve.seam._handler import (
    INFERENCE,
    Handler,
    load_handler,
    places,
    put_around,
)
from calib_serve.torchserve.seam._host import Answer, ask, context_of, told
from calib_serve.torchserve.seam._recorder import Called, PlaceRecorder, networks_called, sigmoids
from calib_serve.torchserve.seam._refutation import (
    Ask,
    NotFollowed,
    NotOneOwned,
    NotPassed,
    Place,
    Seen,
    read_batches,
    read_place,
)
from calib_serve.torchserve.seam._requests import Request, made_up
from calib_serve.torchserve.seam._trial import Ticks
from calib_serve.torchserve.shown import Readings

_REQUESTS = 4  # that differ, for the trial
_NOT_PASSED = "the request did not pass here"


@dataclass(frozen=True)
class Known:
    """What is known of a seam before a handler is asked: where it is, and the scores there.

    ``several``: whether any number of ``classes`` may be true.
    """

    seam: str | None = None
    output: str | None = None
    outputs: Outputs | None = None
    classes: int | None = None
    several: bool | None = None


def look(
    folder: Path,
    *,
    requests: Sequence[dict[str, str]] = (),
    others: Sequence[Sequence[dict[str, str]]] = (),
    shape: Sequence[int] | None = None,
    batch_size: int = 1,
    progress: str,
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Find where the class scores pass, their kind, and what replies show of them, as for ``find_seam``.

    ``known``: the fields of ``Known``. Raises ModelError where there is no place that the replies are made
    from, or more than one.
    """
    wanted = Known(**(known or {}))
    seam = wanted.seam
    handler, recorders, ctx = recorded(folder, seam, batch_size)
    tick = Ticks(progress)
    tried = [Request.from_dict(held) for held in requests] or made_up(shape)
    with networks_called() as called:
        chosen, bare = _first_answer(handler, recorders, ctx, tried, called=called, tick=tick)
    if seam != DECLARED and (declared := recorders.pop(DECLARED, None)) is not None and declared.returned:
        recorders = {DECLARED: declared}

    def answered(batch: Sequence[Request]) -> Answer:
        tick()
        return ask(handler.handle, ctx, batch, bare=bare)

    asked = [tried[chosen], *(Request.from_dict(forms[chosen]) for forms in others)]
    if not requests:
        asked += [made_up(shape, seed)[chosen] for seed in range(1, _REQUESTS)]
    # As TorchServe's own handlers read it from index_to_name.json.
    mapping = getattr(handler.subject, "mapping", None)
    mapping = mapping if isinstance(mapping, dict) else None
    said = _Said(wanted, _names(mapping), [] if seam or DECLARED in recorders else called)
    candidates, why = _candidates(recorders, wanted.classes, wanted.output)
    if not seam and DECLARED not in recorders:
        late = "it is loaded with the first request, and not by initialize, as it has to be"
        why |= {name: late for name in places(handler) if name not in recorders}
    fitting, against = _fitting(candidates, answered, asked, said)
    found = _the_one(fitting, why | against)
    place, batched, reason = _together(found, max(2, batch_size), wanted.output)
    return {
        "place": place.name,
        "output": str(place.form),
        "kind": place.kind,
        "columns": place.columns,
        "rows": found.alone.rows.tolist(),
        "requests": [request.as_dict() for request in found.requests],
        "replies": found.alone.replies,
        "batched": [seen.rows.tolist() for seen in batched],
        "in_order": all(seen.in_order for seen in batched),
        "alone_because": reason,
        "form": chosen,
        "bare": bare,
        "handler": (handler.module.__name__ if handler.is_function else type(handler.subject).__name__),
        "class_names": mapping,
        "shown": found.shown.as_dict(),
    }


class _Said(NamedTuple):
    """What is known, the names of classes, and the networks that were called."""

    known: Known
    names: Sequence[str]
    called: Sequence[Called]


class _Fitting(NamedTuple):
    """A place that was not refuted: the requests, what was seen of each alone, what replies show."""

    place: Place
    requests: list[Request]
    alone: Seen
    shown: Readings


def _fitting(
    candidates: Sequence[_Candidate], answered: Ask, asked: Sequence[Request], said: _Said
) -> tuple[list[_Fitting], dict[str, str]]:
    """Try each candidate; list those that were not refuted, and the reasons against others."""
    fitting, why = list[_Fitting](), dict[str, str]()
    for each in candidates:
        place = Place(each.name, answered, each.recorder, each.form, "logits", each.columns)
        try:
            place, known, alone = _alone(place, asked)
            if not any(_same(one.alone.rows, alone.rows) for one in fitting):
                place, shown = _of_one_kind(each, place, known, alone, said)
                fitting.append(_Fitting(place, known, alone, shown))
        except ModelError as error:
            why[each.described] = str(error)
    return fitting, why


def _the_one(fitting: Sequence[_Fitting], why: dict[str, str]) -> _Fitting:
    """The place that is left; ModelError where there is none, or several hold other probabilities."""
    if not fitting:
        raise _no_place(why)
    first, *rest = fitting
    probs = to_probs(first.alone.rows, first.place.kind)
    others = [one.place.name for one in rest if not _same(to_probs(one.alone.rows, one.place.kind), probs)]
    if others:
        raise ModelError(
            f"the reply is made of the scores at {first.place.name} and of those at {' and '.join(others)}; "
            "name with --seam those of the classifier that the labels are of"
        )
    return first


def _same(one: Floats, other: Floats) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, atol=1e-4))


def _names(mapping: Mapping[str, Any] | None) -> list[str]:
    """The names of the classes in a handler's mapping, as replies show them; empty where unknown."""
    with suppress(ValueError, TypeError, IndexError, KeyError):
        ordered = sorted((mapping or {}).items(), key=lambda item: int(item[0]))
        return [str(name if isinstance(name, str) else name[-1]) for _, name in ordered]
    return []


def _of_one_kind(
    each: _Candidate, place: Place, requests: Sequence[Request], alone: Seen, said: _Said
) -> tuple[Place, Readings]:
    """Try the kinds that the scores may be of; return the one by which the reply can be read."""
    found: list[tuple[tuple[int, bool], Place, Readings]] = []
    against: list[ModelError] = []
    beside = [one.name for one in said.called if one.is_beside(each.call)]
    for kind in _kinds(each, alone.rows, said.known.outputs):
        one = replace(place, kind=kind)
        try:
            shown = read_place(one, requests, alone, said.names, beside)
        except ModelError as error:
            against.append(error)
            continue
        # One class that is named in each reply is no sign of labels that are independent.
        signs = 2 if shown.numbers or shown.keys else int(bool(shown.labels) and kind not in LABELS)
        found.append(((signs, (kind in LABELS) is said.known.several), one, shown))
    if not found:
        raise next((one for one in against if not isinstance(one, NotFollowed)), against[0])
    best = [one for one in found if one[0] == max(one[0] for one in found)]
    if len(best) > 1:
        may_be = [one[1].kind for one in best]
        raise ModelError(
            f"what passes may be {' or '.join(may_be)}, by all that the reply shows of it; say which with "
            + " or ".join(f"--outputs {kind}" for kind in may_be)
        )
    return best[0][1:]


def _kinds(each: _Candidate, rows: Floats, outputs: Outputs | None) -> tuple[Outputs, ...]:
    """List the kinds that rows (n, K) may be of: as said, by a sigmoid that was seen, by sums of 1."""
    one, known = rows.shape[1] == 1, proved(rows)
    may_be: tuple[Outputs, ...] = ("probabilities", "label_probabilities", "logits", "label_logits")
    if each.of_sigmoid:
        may_be = ("probability", "label_probabilities") if one else ("label_probabilities",)
    elif known is not None:
        may_be = (known, "label_probabilities") if known == "probabilities" else (known,)
    elif one:
        may_be = ("logit", "probability", "label_logits", "label_probabilities")
    may_be = tuple(kind for kind in may_be if not refuted(rows, kind))
    if outputs is None:
        # Of one column the reply cannot tell a class from a label.
        return tuple(kind for kind in may_be if kind == known or not (known or (one and kind in LABELS)))
    said = exact(outputs, rows.shape[1])
    if said not in may_be:
        raise ModelError(
            f"{outputs} are expected at the seam {each.name!r}; its values are {may_be[0]}: say --outputs "
            f"{may_be[0]}, with an artifact that was fitted on such"
        )
    return (said,)


def _alone(place: Place, requests: Sequence[Request]) -> tuple[Place, list[Request], Seen]:
    """Ask requests one by one, and keep the answered ones."""
    found: list[tuple[Request, Seen]] = []
    none: ModelError = NotPassed()
    for request in requests:
        try:
            found.append((request, place.see([request])))
        except (NotPassed, NotOneOwned) as error:
            none = error
            continue  # it was asked before, or has no row of its own
        except ModelError:
            if not found:
                raise
        if len(found) == _REQUESTS:
            break
    if not found:
        raise none
    whole = Seen(
        np.concatenate([seen.rows for _, seen in found]),
        [reply for _, seen in found for reply in seen.replies],
    )
    half = place.form.is_half(place.recorder.returned[-1])
    return replace(place, half=half), [request for request, _ in found], whole


def _together(found: _Fitting, most: int, output: str | None) -> tuple[Place, list[Seen], str]:
    """Ask at ``most`` so many requests at once; return the reason why that must not be done, if any."""
    place, requests = found.place, found.requests[:most]
    forms, reason = [place.form], ""
    some = Seen(found.alone.rows[:most], found.alone.replies[:most])
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
            return placed, read_batches(placed, requests, some, found.shown), ""
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
    for name in [seam] if seam else [DECLARED, *places(handler)]:
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
    called: list[Called],
    tick: Callable[[], None],
) -> tuple[int, bool]:
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
            called.clear()
            with sigmoids() as seen:
                for recorder in recorders.values():
                    recorder.clear(seen)
                tick()
                got = ask(handler.handle, ctx, [request], bare=bare)
            if not got.failure and any(recorder.returned for recorder in recorders.values()):
                return number, bare
            if not got.failure:
                answered = answered or (number, bare)
                continue
            failures[f"{request.content_type}{' (body alone)' if bare else ''}: {got.failure}"] = None
    if answered is not None:
        for recorder in recorders.values():
            recorder.clear()
        return answered
    if not requests:
        raise ModelError(
            "there is no request to try the handler with; give one that it answers: --probe FILE"
        )
    raise ModelError(
        "\n  ".join(["the handler did not answer the request; give another: --probe FILE", *failures])
    )


class _Candidate(NamedTuple):
    """Scores of ``columns`` that passed the place ``name`` in this ``form``; whether a sigmoid made them."""

    name: str
    form: Form
    columns: int
    of_sigmoid: bool
    recorder: PlaceRecorder
    call: Called

    @property
    def described(self) -> str:
        """Name the place for a person."""
        return f"{self.name}, in {self.form}" if self.form.path else self.name


def _candidates(
    recorders: dict[str, PlaceRecorder], classes: int | None, output: str | None
) -> tuple[list[_Candidate], dict[str, str]]:
    """List the places where scores passed, the likeliest first; and the reasons against the others."""
    found, why = [], {}
    for place, recorder in recorders.items():
        if not recorder.returned:
            why[place] = _NOT_PASSED
            continue
        try:
            passed = all_scores(recorder.returned[0], classes) if output is None else []
            forms = [form for form, _ in passed] if output is None else [Form.parse(output)]
        except ModelError as error:
            why[place] = str(error)
            continue
        for form in forms:
            try:
                rows = np.concatenate([form.scores(one, classes).values for one in recorder.returned])
                made = recorder.is_of_sigmoid(rows)
                found.append(_Candidate(place, form, rows.shape[1], made, recorder, recorder.call))
            except (ModelError, ValueError) as error:
                why[f"{place}, in {form}" if form.path else place] = str(error)
    return found, why


def _no_place(why: dict[str, str]) -> ModelError:
    """Make the error that gives each place's reason."""
    reasons = {place: reason for place, reason in why.items() if reason != _NOT_PASSED}
    if len(set(reasons.values())) == 1:
        places_ = " nor at ".join(reasons)
        return ModelError(f"the class scores are not understood at {places_}: {next(iter(reasons.values()))}")
    what = (
        "found no place where the class scores pass; name one with --seam, a dotted path from the handler "
        "such as model or model.forward"
    )
    each = (f"at {place}: {reason}" for place, reason in (reasons or why).items())
    return ModelError("\n  ".join([what, *each]))
