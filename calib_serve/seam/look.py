"""Find the seam of an archive's own handler, by one request that it answers."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import CalibServeError, ModelError
from calib_serve.scores import PROBABILITIES, Outputs, exact, measured
from calib_serve.seam.form import Form, Scores, find_scores
from calib_serve.seam.handler import INFERENCE, Handler, load_handler, places, put_around
from calib_serve.seam.host import Answer, Request, ask, context_of, made_up, told
from calib_serve.seam.reply import as_json, shown_as

__all__ = ["Recorder", "Sigmoid", "initialize", "look", "manifest_of_model", "recorded", "sigmoids"]

_NAMES = ("sigmoid", "sigmoid_", "logsigmoid", "special_expit")
_MOST = 1 << 16  # numbers of one result that are kept


class Sigmoid(NamedTuple):
    """One call: the shape of its input, and its result as float64 where that is small."""

    shape: tuple[int, ...]
    made: NDArray[np.float64] | None

    def is_source_of(self, values: NDArray[np.float64]) -> bool:
        """Whether ``values`` are what it made."""
        made = self.made
        return (
            made is not None and made.size == values.size and bool(np.allclose(made, values.ravel(), 0, 1e-6))
        )


@contextmanager
def sigmoids() -> Iterator[list[Sigmoid]]:
    """Each sigmoid on this thread, in a list that grows; outside TorchScript."""
    seen: list[Sigmoid] = []
    if importlib.util.find_spec("torch") is None:
        yield seen
        return
    from torch.overrides import TorchFunctionMode  # noqa: PLC0415

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            found = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") in _NAMES and args and hasattr(args[0], "shape"):
                seen.append(Sigmoid(tuple(args[0].shape), _values(found)))
            return found

    with Watching():
        yield seen


def _values(tensor: Any) -> NDArray[np.float64] | None:
    with suppress(Exception):  # such as a tensor without storage, while a program is traced
        if tensor.numel() <= _MOST:
            return np.array(tensor.detach().double().cpu().numpy()).ravel()  # what is later changed in place
    return None


_NOT_PASSED = "the request did not pass here"


@dataclass
class Recorder:
    """What passed one place since ``clear``, and the sigmoids before and after it.

    ``elsewhere``: whether some of it passed on another thread than the one that asks, so in any order.
    """

    returned: list[Any] = field(default_factory=list)
    elsewhere: bool = False
    seen: list[Sigmoid] = field(default_factory=list)
    before: int = 0

    def clear(self, seen: list[Sigmoid]) -> None:
        """Begin again; ``seen`` grows with each sigmoid."""
        self.returned.clear()
        self.elsewhere = False
        self.seen, self.before = seen, 0

    def sigmoid(self, values: NDArray[np.float64]) -> Literal["before", "after"] | None:
        """Whether what passed, ``values`` (n, K), is what a sigmoid made, or meets one."""
        if any(one.is_source_of(values) for one in self.seen[: self.before]):
            return "before"
        columns = values.shape[1]
        meets = (
            one.shape[-1:] == (columns,) or (columns == 1 and len(one.shape) <= 1)
            for one in self.seen[self.before :]
        )
        return "after" if any(meets) else None

    def __call__(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of ``call``, recorded."""
        result = call(*args, **kwargs)
        self.returned.append(result)
        self.elsewhere |= threading.current_thread() is not threading.main_thread()
        self.before = len(self.seen)
        return result


def look(
    folder: Path,
    *,
    requests: Sequence[dict[str, str]] = (),
    shape: Sequence[int] | None = None,
    classes: int | None = None,
    seam: str | None = None,
    output: str | None = None,
    outputs: Outputs | None = None,
    batch_size: int = 1,
) -> dict[str, Any]:
    """Where the class scores pass: the seam, their form and kind, and the handler's reply to the request."""
    handler, recorders = recorded(folder, seam, batch_size)
    ctx = context_of(folder, batch_size=batch_size)
    given = [Request.from_dict(held) for held in requests]
    tried = given or [request for one in (shape, *_guessed_shapes(handler)) for request in made_up(one)]
    request, bare, answer = _first_answer(handler, recorders, ctx, list(dict.fromkeys(tried)), bool(given))
    reply = as_json(answer.replies[0])
    found = _seam(recorders, classes, output, outputs, reply)
    if batch_size > 1:
        recorder = recorders[found["seam"]]
        recorder.clear([])
        found["batches"] = not ask(handler.handle, ctx, [request, request], bare=bare).failure
        if found["batches"]:
            found["output"] = str(_form_of_two(recorder, max(2, found["columns"]), output))
    return {
        **found,
        "request": request.as_dict(),
        "bare": bare,
        "reply": reply,
        "handler": type(handler.subject).__name__ if not handler.is_function else handler.module.__name__,
        "places": list(recorders),
        "class_names": _mapping(handler),
    }


def recorded(folder: Path, seam: str | None, batch_size: int) -> tuple[Handler, dict[str, Recorder]]:
    """The handler, loaded, with a recorder at the seam, or at every place that may be one."""
    recorder = Recorder()
    handler = load_handler(manifest_of_model(folder)["handler"], inference=recorder)
    initialize(handler, context_of(folder, batch_size=batch_size))
    recorders = {place: Recorder() for place in ([seam] if seam else places(handler))}
    if INFERENCE in recorders:
        recorders[INFERENCE] = recorder
    for place, one in recorders.items():
        put_around(handler, place, one)
    return handler, recorders


def initialize(handler: Handler, ctx: Any) -> None:
    """Make a handler load its model; ModelError, which says why, where it does not."""
    try:
        handler.initialize(ctx)
    except CalibServeError:
        raise
    except (Exception, SystemExit) as error:  # a handler may raise anything
        raise ModelError(f"the handler does not load: {told(error)}") from error


def _first_answer(
    handler: Handler, recorders: dict[str, Recorder], ctx: Any, requests: list[Request], given: bool
) -> tuple[Request, bool, Answer]:
    """The first of ``requests`` that the handler answers, as itself or as a bare payload.

    Rather one that passes a recorder: some handlers answer what they do not understand with an error's text.
    """
    failures, answered = [], None
    for request in requests:
        for bare in (False, True):
            with sigmoids() as seen:
                for recorder in recorders.values():
                    recorder.clear(seen)
                got = ask(handler.handle, ctx, [request], bare=bare)
            if not got.failure and any(recorder.returned for recorder in recorders.values()):
                return request, bare, got
            if not got.failure:
                answered = answered or (request, bare, got)
                continue
            failures.append(f"{request.content_type}{' (body alone)' if bare else ''}: {got.failure}")
    if answered is not None:
        for recorder in recorders.values():
            recorder.clear([])
        return answered
    what = (
        "the request that it was given:"
        if given
        else "any made-up request; give one it answers with --probe FILE:"
    )
    raise ModelError("\n  ".join([f"the handler did not answer {what}", *failures]))


def _seam(
    recorders: dict[str, Recorder],
    classes: int | None,
    output: str | None,
    outputs: Outputs | None,
    reply: Any,
) -> dict[str, Any]:
    """The first place where one row of scores passed, and what they are."""
    why = {}
    for place, recorder in recorders.items():
        if not recorder.returned:
            why[place] = _NOT_PASSED
            continue
        try:
            form, found = _found(recorder.returned, classes, output)
            if len(found.values) != 1:
                raise ModelError(f"{len(found.values)} rows of scores passed for one request")
            return {
                "seam": place,
                "output": str(form),
                "kind": _kind(recorder, found.values, outputs, reply),
                "columns": found.values.shape[1],
                "row": found.values[0].tolist(),
            }
        except ModelError as error:
            why[place] = str(error)
    reasons = set(why.values()) - {_NOT_PASSED}
    if len(reasons) == 1:
        places_ = " nor at ".join(place for place, reason in why.items() if reason != _NOT_PASSED)
        raise ModelError(f"the class scores are not understood at {places_}: {reasons.pop()}")
    raise ModelError(
        "\n  ".join(
            [
                "found no place where the class scores pass; name one with --seam, a dotted path from the "
                "handler such as model or model.forward",
                *(f"at {place}: {reason}" for place, reason in why.items()),
            ]
        )
    )


def _kind(recorder: Recorder, values: NDArray[np.float64], told: Outputs | None, reply: Any) -> Outputs:
    """What the scores are, by their values and by what was done with them; ModelError if not known.

    As ``told`` where nothing speaks against it: numbers alone tell logits of a label from those of a class no
    more than one row tells whether numbers within [0, 1] are logits.
    """
    columns = values.shape[1]
    may_be = _may_be(recorder.sigmoid(values), measured(values), shown_as(reply, values[0].tolist()), columns)
    told = told and exact(told, columns)
    if told in may_be:
        return told
    if len(may_be) == 1 or not _doubtful(may_be):
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
    """All that scores may be, the likeliest first."""
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


def _doubtful(may_be: tuple[Outputs, ...]) -> bool:
    """Whether both logits and probabilities are among what scores may be, and it is not said which."""
    within = [kind in PROBABILITIES for kind in may_be]
    return any(within) and not all(within)


def _found(returned: list[Any], classes: int | None, output: str | None) -> tuple[Form, Scores]:
    parts = []
    for value in returned:
        if output is None:
            parts.append(find_scores(value, classes))
        else:
            form = Form.parse(output)
            parts.append((form, form.scores(value, classes)))
    forms = {form for form, _ in parts}
    if len(forms) != 1:
        raise ModelError("its results have more than one form")
    values = np.concatenate([scores.values for _, scores in parts])
    return forms.pop(), Scores(values, values.shape)


def _form_of_two(recorder: Recorder, classes: int, output: str | None) -> Form:
    """Where the scores of two requests lie: what is one of one may be a list of rows or of outputs."""
    form, scores = _found(recorder.returned, classes, output)
    if len(scores.values) != 2:
        raise ModelError(f"two requests at once made {len(scores.values)} rows of scores")
    return form


def _guessed_shapes(handler: Handler) -> Iterator[list[int]]:
    """Shapes of one input that the first layer of the handler's network may take."""
    networks = [v for v in vars(handler.subject).values() if hasattr(v, "register_forward_hook")]
    for parameter in next((network.parameters() for network in networks), ()):
        if parameter.ndim == 4:
            yield from ([parameter.shape[1], size, size] for size in (28, 32, 64, 224))
        elif parameter.ndim == 2:
            yield [parameter.shape[1]]
        else:
            continue
        return
    for session in (v for v in vars(handler.subject).values() if hasattr(v, "get_inputs")):
        for taken in session.get_inputs()[:1]:
            yield [size if isinstance(size, int) else -1 for size in taken.shape[1:]]


def _mapping(handler: Handler) -> dict[str, Any] | None:
    """The class names that TorchServe's handlers read from index_to_name.json."""
    mapping = getattr(handler.subject, "mapping", None)
    return mapping if isinstance(mapping, dict) else None


def manifest_of_model(folder: Path) -> dict[str, Any]:
    """The manifest's entries of the model."""
    model: dict[str, Any] = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))["model"]
    return model
