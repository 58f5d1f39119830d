"""Output of commands: JSON for programs, verdicts and tables for people."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from calib_serve.artifact import Artifact, Score, Step
    from calib_serve.metrics import Verdict

_COLORS = {"calibrated": "green", "no_error_found": "cyan", "too_little": "yellow", "off": "red"}


def console() -> Console:
    """A console for people: names in brackets are no markup."""
    from rich.console import Console

    # Unwrapped, as commands and paths in it are copied.
    return Console(highlight=False, markup=False, soft_wrap=True)


def command_line(*words: object) -> str:
    """A command of ours as a shell takes it."""
    return shlex.join(["calib-serve", *map(str, words)])


def as_flags(options: object, *kinds: type) -> list[str]:
    """The fields of ``kinds`` that differ from their defaults, as the command line takes them.

    >>> from calib_serve.core.options.data import ScoresOptions
    >>> as_flags(ScoresOptions(columns=("p_0", "p_1"), outputs="percent"), ScoresOptions)
    ['--columns', 'p_0,p_1', '--outputs', 'percent']
    """
    words: list[str] = []
    for one in {field.name: field for kind in kinds for field in fields(kind)}.values():
        value = getattr(options, one.name)
        if value != one.default:
            flag = f"--{one.name.replace('_', '-').rstrip('-')}"
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return words


def print_json(found: Any, *, indent: int | None = None) -> None:
    """Print JSON."""
    said(json.dumps(found, indent=indent))


def said(text: str) -> None:
    """Print a line at once, for programs that wait for it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()  # a pipe is buffered, and a script waits for the line "watching ..."


def note(remarks: Iterable[str]) -> None:
    """Print remarks on stderr."""
    for remark in remarks:
        sys.stderr.write(f"calib-serve: {remark}\n")


def narrow_table(*heads: str, title: str = "") -> Table:
    """A table of a name and numbers, each to the right and whole, that fits 80 columns and a pipe."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column(heads[0], overflow="fold")
    for head in heads[1:]:
        table.add_column(head, justify="right", no_wrap=len(head) < 10, overflow="fold")
    return table


def show_verdict(out: Console, verdict: Verdict, *, every: bool = False) -> None:
    """Print a verdict: the gain, the headline in its colour, the changes and the first advice.

    ``every``: the reasons, the tests and all that is to do as well.
    """
    if verdict.gain:
        out.print(verdict.gain, style="bold")
    out.print(verdict.headline, style=f"bold {_COLORS[verdict.level]}")
    tests = [test.says() for test in verdict.tests if not test.alone]
    why = (*verdict.reasons, *tests) if every else ()
    for sentence in (*why, *verdict.changed, *(verdict.do if every else verdict.do[:1])):
        out.print(f"- {sentence}")


def as_metric(name: str, value: float) -> str:
    r"""A metric as every command shows it: entropy and NLL in nats, Cllr in bits, all others in percent.

    >>> as_metric("nll", 0.25), as_metric("ece", 0.0475)
    ('0.2500', '4.75\xa0%')
    """
    from calib_serve.core.text import percent

    if math.isnan(value):
        return ""
    return f"{value:.4f}" if name in ("nll", "entropy") or "cllr" in name else percent(value, 2)


def artifact_facts(artifact: Artifact) -> dict[str, Any]:
    """All facts of an artifact, as plain values for JSON; steps by their kind and shapes."""
    reference, sets, choice = artifact.reference, artifact.sets, artifact.choice
    costs = None if choice is None or choice.costs is None else choice.costs.tolist()
    return {
        "fingerprint": artifact.fingerprint,
        "method": artifact.method,
        "classes": artifact.classes,
        "class_names": list(artifact.class_names),
        "steps": [{"kind": step.kind, **_sizes(step)} for step in artifact.steps],
        "fit": artifact.fit.as_dict(),
        "sets": None if sets is None else {**sets.facts, "threshold": sets.threshold.tolist()},
        "abstain": None if artifact.abstain is None else artifact.abstain.facts,
        "choice": None if choice is None else {**choice.facts, "costs": costs},
        "contract": None if artifact.contract is None else artifact.contract.facts,
        "data": artifact.data,
        "model": artifact.model.as_dict(),
        "before": artifact.before,
        "after": artifact.after,
        "reference": None
        if reference is None
        else {"n": reference.n, "accuracy": reference.accuracy(), "ece": reference.ece()},
        "versions": artifact.versions,
    }


def artifact_tables(artifact: Artifact) -> list[Table]:
    """The facts of an artifact as tables: facts with certificates, candidates, and metrics."""
    from rich.table import Table

    from calib_serve.core.text import fact_lines

    known = artifact_facts(artifact)
    before, after = known.pop("before"), known.pop("after")
    selection = artifact.selection
    if selection:  # Candidates have a table of their own; as facts they would be dozens of rows.
        del known["fit"]["selection"]["scores"]
    what = "labels" if artifact.is_multilabel else "classes"
    title = f"{artifact.method}, {artifact.classes} {what}"
    table = Table("fact", "value", title=title, title_justify="left")
    for name, value in known.items():
        for row in fact_lines(name, value):
            table.add_row(*row)
    return [
        table,
        *([_candidates(selection.scores)] if selection else []),
        *([_measured(artifact)] if before or after else []),
    ]


def _measured(artifact: Artifact) -> Table:
    from rich.table import Table

    on = artifact.data.get("measured_on", "held-out samples")
    table = Table("metric", "before", "after", title=f"measured on {on}", title_justify="left")
    for name in artifact.after or artifact.before:
        ends = (artifact.before.get(name), artifact.after.get(name))
        table.add_row(name, *(_estimate(name, end) for end in ends))
    return table


def _candidates(scores: Sequence[Score]) -> Table:
    from rich.table import Table

    table = Table("candidate", "score", "above best", "refused", title="candidates", title_justify="left")
    for one in scores:
        found = (f"{one.score:.5f}", f"{one.above_best:.5f} ± {one.standard_error:.5f}")
        # A candidate that could not be fitted has no numbers.
        table.add_row(one.method, *(("", "") if math.isnan(one.score) else found), one.refused or "")
    return table


def _estimate(name: str, value: Any) -> str:
    if not isinstance(value, dict) or value.get("value") is None:
        return "" if value is None or isinstance(value, dict) else str(value)
    low, high = value.get("low"), value.get("high")
    interval = "" if low is None or high is None else f" [{as_metric(name, low)}, {as_metric(name, high)}]"
    return f"{as_metric(name, value['value'])}{interval}"


def _sizes(step: Step) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for name, value in vars(step).items():
        if hasattr(value, "shape"):
            sizes[name] = float(value) if value.ndim == 0 else list(value.shape)
        elif isinstance(value, tuple):
            sizes[name] = [list(item.shape) if hasattr(item, "shape") else item for item in value]
        elif value is not None:
            sizes[name] = value
    return sizes
