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
from calib_serve.torchserve.seam._host import Answer, ask, context_of, in_one_line
from calib_serve.torchserve.seam._recorder import Called, PlaceRecorder, networks_called, sigmoids
from calib_serve.torchserve.seam._refutation import (
    Alone,
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
from calib_serve.torchserve.seam._seam import Known, Seam
from calib_serve.torchserve.seam._trial import Ticks
from calib_serve.torchserve.shown import Readings

_REQUESTS = 4  # that differ, for the trial
_NOT_PASSED = "the request did not pass here"


def look(
    folder: Path,
    *,
    known: Mapping[str, Any],
    samples: Sequence[Sequence[dict[str, str]]],
    shape: Sequence[int | None] | None,
    batch_size: int,
    progress: str,
) -> dict[str, Any]:
    """Find where the class scores pass, their kind, and what replies show of them: a ``Seam``, for JSON.

    ``known``: the fields of ``Known``; ``samples``, each in the same forms, as ``find_seam`` takes them.
    Raises ModelError where there is no place that the replies are made from, or more than one.
    """
    wanted, tick = Known(**known), Ticks(progress)
    loaded = LoadedHandler.of(folder, wanted.seam, batch_size)
    given = [[Request.from_dict(held) for held in forms] for forms in samples]
    given = given or [[*made_up(shape, seed)] for seed in range(_REQUESTS)]
    with networks_called() as called:
        form, bare = _first_answer(loaded, given[0], called, tick)
    recorders = loaded.recorders
    if wanted.seam != DECLARED and DECLARED in recorders:
        declared = recorders.pop(DECLARED)
        recorders = {DECLARED: declared} if declared.returned else recorders

    def answered(batch: Sequence[Request]) -> Answer:
        tick()
        return loaded.ask(batch, bare)

    # As TorchServe's own handlers read it from index_to_name.json.
    mapping = getattr(loaded.handler.subject, "mapping", None)
    mapping = mapping if isinstance(mapping, dict) else None
    is_sure = bool(wanted.seam) or DECLARED in recorders
    candidates, why = _candidates(recorders, answered, wanted)
    if not is_sure:
        late = "it is loaded with the first request, and not by initialize, as it has to be"
        why |= {name: late for name in places(loaded.handler) if name not in recorders}
    said = _Said(wanted, _names(mapping), [] if is_sure else called)
    fitting, against = _fitting(candidates, [forms[form] for forms in given], said)
    found = _the_one(fitting, why | against)
    place, batched, reason = _together(found, max(2, batch_size), wanted.output)
    return Seam(
        place=place.name,
        output=str(place.form),
        kind=wanted.outputs or place.kind,
        columns=place.columns,
        rows=found.alone.rows,
        requests=[request.as_dict() for request in found.alone.requests],
        replies=found.alone.replies,
        batched=[seen.rows for seen in batched],
        in_order=all(seen.in_order for seen in batched),
        alone_because=reason,
        form=form,
        bare=bare,
        handler=loaded.handler.name,
        shown=found.shown,
        class_names=mapping,
    ).as_dict()


class _Said(NamedTuple):
    """What is known, the names of classes, and the networks that were called."""

    known: Known
    names: Sequence[str]
    called: Sequence[Called]


class _Fitting(NamedTuple):
    """A place that was not refuted by what was seen of requests alone, and what replies show there."""

    alone: Alone
    shown: Readings

    @property
    def probs(self) -> Floats:
        """The probabilities (n, K) of the requests."""
        return to_probs(self.alone.rows, self.alone.place.kind)


def _fitting(
    candidates: Sequence[_Candidate], asked: Sequence[Request], said: _Said
) -> tuple[list[_Fitting], dict[str, str]]:
    """Try each candidate; list those that were not refuted, and the reasons against others."""
    fitting, why = list[_Fitting](), dict[str, str]()
    for each in candidates:
        try:
            alone = _alone(each.place, asked)
            if not any(_same(one.alone.rows, alone.rows) for one in fitting):
                fitting.append(_of_one_kind(each, alone, said))
        except ModelError as error:
            why[_described(each.place.name, each.place.form)] = str(error)
    return fitting, why


def _the_one(fitting: Sequence[_Fitting], why: dict[str, str]) -> _Fitting:
    """The place that is left; ModelError where there is none, or several hold other probabilities."""
    if not fitting:
        raise _no_place(why)
    first, *rest = fitting
    others = [one.alone.place.name for one in rest if not _same(one.probs, first.probs)]
    if others:
        raise ModelError(
            f"the reply is made of the scores at {first.alone.place.name} and of those at "
            f"{' and '.join(others)}; name with --seam those of the classifier that the labels are of"
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


def _of_one_kind(each: _Candidate, alone: Alone, said: _Said) -> _Fitting:
    """Try the kinds that the scores may be of; return the one by which the reply can be read."""
    found: list[tuple[tuple[int, bool], _Fitting]] = []
    against: list[ModelError] = []
    beside = [one.name for one in said.called if one.is_beside(each.call)]
    for kind in _kinds(each, alone.rows, said.known.outputs):
        one = replace(alone, place=replace(alone.place, kind=kind))
        try:
            shown = read_place(one, said.names, beside)
        except ModelError as error:
            against.append(error)
            continue
        # One class that is named in each reply is no sign of labels that are independent.
        signs = 2 if shown.numbers or shown.keys else int(bool(shown.labels) and kind not in LABELS)
        found.append(((signs, (kind in LABELS) is said.known.several), _Fitting(one, shown)))
    if not found:
        raise next((one for one in against if not isinstance(one, NotFollowed)), against[0])
    most = max(signs for signs, _ in found)
    best = [fitting for signs, fitting in found if signs == most]
    if len(best) > 1:
        may_be = [one.alone.place.kind for one in best]
        raise ModelError(
            f"what passes may be {' or '.join(may_be)}, by all that the reply shows of it; say which with "
            + " or ".join(f"--outputs {kind}" for kind in may_be)
        )
    return best[0]


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
            f"{outputs} are expected at the seam {each.place.name!r}; its values are {may_be[0]}: say "
            f"--outputs {may_be[0]}, with an artifact that was fitted on such"
        )
    return (said,)


def _alone(place: Place, requests: Sequence[Request]) -> Alone:
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
    return Alone(
        replace(place, half=place.form.is_half(place.recorder.returned[-1])),
        [request for request, _ in found],
        np.concatenate([seen.rows for _, seen in found]),
        [reply for _, seen in found for reply in seen.replies],
    )


def _together(found: _Fitting, most: int, output: str | None) -> tuple[Place, list[Seen], str]:
    """Ask at ``most`` so many requests at once; return the reason why that must not be done, if any."""
    some = found.alone.first(most)
    place = some.place
    forms, reason = [place.form], ""
    if output is None and not place.form.path:  # a list of one may hold rows, or outputs
        with suppress(ModelError):
            place.recorder.clear()
            place.ask(some.requests[:2])
            columns = max(2, place.columns)
            passed = {find_scores(value, columns)[0] for value in place.recorder.returned}
            forms = list(passed) if len(passed) == 1 else forms
    if EACH in place.form.path:
        forms.append(Form(tuple(0 if step == EACH else step for step in place.form.path)))
    for form in forms:
        placed = replace(place, form=form)
        try:
            return placed, read_batches(replace(some, place=placed), found.shown), ""
        except ModelError as error:
            reason = reason or str(error)
    return replace(place, form=forms[0]), [], reason


@dataclass(frozen=True)
class LoadedHandler:
    """An archive's handler that loaded its model, a recorder at each place that may be the seam.

    ``ctx``: the context that a worker would give it.
    """

    handler: Handler
    recorders: dict[str, PlaceRecorder]
    ctx: Any

    @classmethod
    def of(cls, folder: Path, seam: str | None, batch_size: int) -> LoadedHandler:
        """Load the handler of the archive unpacked in ``folder``; a recorder is at the ``seam``, if known."""
        recorder, ctx = PlaceRecorder(), context_of(folder, batch_size=batch_size)
        handler = load_handler(ctx.manifest["model"]["handler"], inference=recorder)
        initialize(handler, ctx)
        recorders: dict[str, PlaceRecorder] = {}
        for name in [seam] if seam else [DECLARED, *places(handler)]:
            recorders[name] = recorder if name == INFERENCE else PlaceRecorder()
            put_around(handler, name, recorders[name])
        return cls(handler, recorders, ctx)

    def ask(self, batch: Sequence[Request], bare: bool) -> Answer:
        """Ask a batch of requests; ``bare``: as bodies alone."""
        return ask(self.handler.handle, self.ctx, batch, bare=bare)


def initialize(handler: Handler, ctx: Any) -> None:
    """Make a handler load its model; ModelError, which says why, where it does not."""
    try:
        handler.initialize(ctx)
    except CalibServeError:
        raise
    except (Exception, SystemExit) as error:  # a handler may raise anything
        raise ModelError(f"the handler does not load: {in_one_line(error)}") from error


def _first_answer(
    loaded: LoadedHandler, requests: Sequence[Request], called: list[Called], tick: Callable[[], None]
) -> tuple[int, bool]:
    """Find the first of ``requests`` that the handler answers, as itself or as a bare payload.

    Rather one that passes a recorder: some handlers answer what they do not understand with an error's text.
    """
    if not requests:
        raise ModelError(
            "there is no request to try the handler with; give one that it answers: --probe FILE"
        )
    failures: dict[str, None] = {}
    answered = None
    for number, request in enumerate(requests):
        if request in requests[:number]:
            continue
        # As a dict that names the body, and as the payload alone, which is what an envelope passes on.
        for bare in (False, True):
            called.clear()
            with sigmoids() as seen:
                for recorder in loaded.recorders.values():
                    recorder.clear(seen)
                tick()
                got = loaded.ask([request], bare)
            if got.failure:
                failures[f"{request.content_type}{' (body alone)' if bare else ''}: {got.failure}"] = None
            elif any(recorder.returned for recorder in loaded.recorders.values()):
                return number, bare
            else:
                answered = answered or (number, bare)
    if answered is None:
        raise ModelError(
            "\n  ".join(["the handler did not answer the request; give another: --probe FILE", *failures])
        )
    for recorder in loaded.recorders.values():
        recorder.clear()
    return answered


class _Candidate(NamedTuple):
    """A place where scores of a kind still to find passed, in a ``call``; whether a sigmoid made them."""

    place: Place
    of_sigmoid: bool
    call: Called


def _candidates(
    recorders: dict[str, PlaceRecorder], answered: Ask, known: Known
) -> tuple[list[_Candidate], dict[str, str]]:
    """List the places where scores passed, the likeliest first; and the reasons against the others."""
    found, why = list[_Candidate](), dict[str, str]()
    for name, recorder in recorders.items():
        if not recorder.returned:
            why[name] = _NOT_PASSED
            continue
        try:
            passed = all_scores(recorder.returned[0], known.classes) if known.output is None else []
            forms = [form for form, _ in passed] if known.output is None else [Form.parse(known.output)]
        except ModelError as error:
            why[name] = str(error)
            continue
        for form in forms:
            try:
                rows = np.concatenate([form.scores(one, known.classes).values for one in recorder.returned])
                place = Place(name, answered, recorder, form, "logits", rows.shape[1])
                found.append(_Candidate(place, recorder.is_of_sigmoid(rows), recorder.call))
            except (ModelError, ValueError) as error:
                why[_described(name, form)] = str(error)
    return found, why


def _described(name: str, form: Form) -> str:
    return f"{name}, in {form}" if form.path else name


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
