"""The seam of an archive's handler, found by asking it and proved: where class scores pass, of which kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import CalibServeError, ModelError
from calib_serve.scores import (
    EACH,
    PROBABILITIES,
    Form,
    Outputs,
    all_scores,
    as_json,
    exact,
    find_scores,
    infer_outputs,
    shown_as,
)
from calib_serve.torchserve.seam._handler import (
    INFERENCE,
    Handler,
    functions,
    is_network,
    is_session,
    load_handler,
    places,
    put_around,
)
from calib_serve.torchserve.seam._host import Answer, ask, context_of, told
from calib_serve.torchserve.seam._proof import NotOneRow, NotPassed, Place, Seen, prove_batches, prove_reply
from calib_serve.torchserve.seam._recorder import PlaceRecorder, sigmoids
from calib_serve.torchserve.seam._requests import Request, random_requests, varied
from calib_serve.torchserve.seam._trial import Ticks

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
    """Find where the class scores pass, and their kind, with the evidence; ``find_seam`` says of what.

    Raises ModelError where no place is proved to be the one that the replies are made from.
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
    what = "any made-up request; give one it answers with --probe FILE:"
    if given:
        what = "the request that it was given:"
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
            passed = all_scores(recorder.returned[0], classes) if output is None else []
            forms = [form for form, _ in passed] if output is None else [Form.parse(output)]
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
    what = (
        "found no place where the class scores pass; name one with --seam, a dotted path from the handler "
        "such as model or model.forward"
    )
    each = (f"at {place}: {reason}" for place, reason in (reasons or why).items())
    return ModelError("\n  ".join([what, *each]))


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
