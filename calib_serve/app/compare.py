"""``calib-serve compare``: methods on two splits, two models on the same samples, and the papers' studies."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from calib_serve.app._command import Flat, Json, OfData, OfOutput, command, pairs
from calib_serve.app._data import file_scores
from calib_serve.app._progress import stages
from calib_serve.app._show import console, narrow_table, note, print_json
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import check, check_default
from calib_serve.core.options.data import BySchema
from calib_serve.core.options.evaluate import CompareOptions

if TYPE_CHECKING:
    from rich.table import Table

    from calib_serve.fit import Compared
    from calib_serve.papers import Study
    from calib_serve.report import Contents
    from calib_serve.scores import Scores

app = command(
    "compare",
    "calib-serve compare scores.npz\n"
    "calib-serve compare old.csv new.csv -o report.html\n"
    "calib-serve compare scores.npz --study size --option sizes=50,500",
    details="DATA are scores with labels in two splits, for a comparison of methods; or two files, scores of "
    "two models of the same samples, paired by a column id.\n\n"
    "Studies: size (how many labelled samples a calibration needs), optimum (how much better any temperature "
    "could do).",
)

_SHOWN = {
    "accuracy": "acc",
    "nll": "nll",
    "brier": "brier",
    "ece": "ece",
    "adaptive_ece": "aece",
    "classwise_ece": "cwece",
    "refinement_auroc": "auroc",
}
_LARGEST_IS_BEST = ("accuracy", "refinement_auroc")


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Options of ``calib-serve compare``."""

    methods: tuple[str, ...] | None = None
    """Methods to compare, commas between; by default all, or those that the study is about."""
    study: Literal["size", "optimum"] | None = None
    """Run a study instead of comparing all methods."""
    option: list[str] = field(default_factory=list)
    """An option of the study size, KEY=VALUE: sizes=50,500, repeats=10 or seed=1."""


@dataclass(frozen=True, kw_only=True)
class _Source(BySchema):
    """Options of the samples to fit and measure on."""

    fit_split: Annotated[str, Parameter(name="--split")] = "cal"
    """The split to fit on."""
    test_split: str = "test"
    """The split to measure on; of two models the whole file, where it has no splits."""


@dataclass(frozen=True, kw_only=True)
class _Written(Json):
    """Options of the output."""

    out: Annotated[Path | None, Parameter(name=("-o", "--out"))] = None
    """Of two models write the report, .html, or its first screen as .png or .svg; of a study study.json
    and .svg into this folder."""


@app.default
def _compare(
    data: list[str],
    *,
    options: Annotated[_Options, Flat] = _Options(),
    source: Annotated[_Source, OfData] = _Source(),
    written: Annotated[_Written, OfOutput] = _Written(),
) -> int:
    """Compare methods, or two models; exit code 1 if no method could be fitted."""
    if options.study is not None:
        _show_study(_study(data, options, source, quiet=written.json), written)
        return 0
    several = "are one file for methods, or two for two models"
    check(len(data) <= 2, "data", several)
    check(not options.option, "option", "is for a study (--study)")
    if len(data) == 2:
        _models(data, options, source, written)
        return 0
    check(written.out is None, "out", "is of two models or a study; the table of methods comes by --json")
    from calib_serve.fit import compare_methods

    fit = file_scores(data[0], source, split=source.fit_split)
    test = file_scores(data[0], source, split=source.test_split, expected=fit.schema)
    methods = options.methods or ("all",)
    with stages(quiet=written.json) as progress:
        rows = compare_methods(
            fit,
            test,
            "all" if methods == ("all",) else methods,
            # The table shows no intervals, and they are most of the work.
            replicates=CompareOptions.replicates if written.json else 0,
            progress=progress,
        )
    if written.json:
        splits = {"fit_split": source.fit_split, "test_split": source.test_split}
        print_json({**splits, "methods": [row.as_dict() for row in rows]})
    else:
        out = console()
        on = f"fitted on {source.fit_split}, measured on {source.test_split}"
        out.print(_table(rows, f"{on}; percent, nll in nats; moved: other class"))
        for row in rows:
            if row.error:
                out.print(f"{row.method}: {row.error}")
    return 0 if any(row.metrics for row in rows) else 1


def _models(data: Sequence[str], options: _Options, source: _Source, written: _Written) -> None:
    """Compare two models by their scores of the same samples; write the report if asked."""
    from calib_serve.report import compare, write_page

    check(options.methods is None, "methods", "are for one file of scores, and these are two models")
    fits = "is for methods, which are fitted; two models are only measured"
    check_default(source, ["fit_split"], fits)
    kinds = (".html", ".htm", ".png", ".svg")
    fine = written.out is None or written.out.suffix.lower() in kinds
    check(fine, "out", f"of two models is a report: {', '.join(kinds)}, got {written.out}")
    first, second = (replace(_of_whole(path, source), name=path) for path in data)
    found = compare(first, second)
    if written.out is not None:
        write_page(written.out, found)
    if written.json:
        print_json(found.as_dict())
        return
    out = console()
    out.print(found.verdict.gain, style="bold")
    for sentence in (*found.verdict.changed, *(one.headline for one in found.verdicts)):
        out.print(f"- {sentence}")
    out.print(_differences(found))
    if written.out is not None:
        out.print(f"written to {written.out}")


def _of_whole(path: str, source: _Source) -> "Scores":
    """The scores of a file without splits, else those of the split to measure on."""
    try:
        return file_scores(path, source, split=None)
    except InputError as error:
        try:
            return file_scores(path, source, split=source.test_split)
        except InputError:
            raise error from None


def _differences(found: "Contents") -> "Table":
    from calib_serve.report import table_of_metrics

    metrics = table_of_metrics(found.task.shown, found.sides, found.changes)
    table = narrow_table(*metrics.heads[:5])
    for row in metrics.rows:
        table.add_row(*(cell if isinstance(cell, str) else cell.text for cell in row[:5]))
    return table


def _study(data: Sequence[str], options: _Options, source: _Source, *, quiet: bool) -> "Study":
    """Run a study on both splits of the scores."""
    from calib_serve import papers as study

    runs: dict[str, Callable[..., Study]] = {
        "size": study.validation_size,
        "optimum": study.optimal_temperature,
    }
    name = str(options.study)
    run = runs[name]
    takes = inspect.signature(run).parameters
    own = dict(pairs(options.option, "--option"))
    known = sorted(set(takes) - {"cal", "test", "methods", "progress"})
    unknown = [key for key in own if key not in known]
    check(not unknown, "option", f"of {name} are {', '.join(known) or 'none'}, not {', '.join(unknown)}")
    check(options.methods is None or "methods" in takes, "methods", f"are not for {name}, which has its own")
    CompareOptions(seed=own.get("seed", 0))  # refuses what is no seed
    own = {key: _like(value, takes[key].default) for key, value in own.items()}
    own |= {} if options.methods is None else {"methods": options.methods}
    check(len(data) == 1, "data", f"must be one for {name}")
    given = [file_scores(data[0], source, split=split) for split in (source.fit_split, source.test_split)]
    if any(part.groups is not None for part in given):
        note(["a study takes every row alone, whatever group it is of"])
    with stages(name, quiet=quiet) as show:
        if "progress" in takes:
            own["progress"] = lambda done, total: show(name, done, total)
        return run(*given, **own)


def _like(value: Any, default: Any) -> Any:
    """A value in the shape of its default: a sequence where the default is one."""
    several = isinstance(default, (tuple, list)) and not isinstance(value, list)
    return [value] if several else value


def _show_study(study: "Study", written: _Written) -> None:
    files = study.save(written.out) if written.out else []
    if written.json:
        print_json(study.as_dict())
        return
    from rich.table import Table

    out = console()
    table = Table(title=study.title, title_justify="left")
    for i, name in enumerate(study.header):
        number = any(isinstance(row[i], (int, float)) for row in study.rows)
        table.add_column(name, justify="right" if number else "left")
    for row in study.rows:
        table.add_row(*map(_cell, row))
    out.print(table)
    for sentence in study.says:
        out.print(f"- {sentence}")
    if files:
        out.print(f"written to {', '.join(map(str, files))}")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _shown(rows: "Sequence[Compared]") -> dict[str, str]:
    """The available metrics and their headings; of two classes, those of P(y = 1)."""
    measured = next((row.metrics.estimates() for row in rows if row.metrics), dict.fromkeys(_SHOWN))
    if "positive_ece" not in measured:
        return _SHOWN
    shown = {**_SHOWN, "positive_ece": "ece P", "positive_brier": "brier P"}
    del shown["positive_brier" if "brier" in measured else "brier"], shown["classwise_ece"]
    return {name: words for name, words in shown.items() if name in measured}


def _table(rows: "Sequence[Compared]", title: str) -> "Table":
    from rich.text import Text

    found = [(row, row.metrics.estimates()) for row in rows if row.metrics]
    shown = _shown(rows)
    table = narrow_table("method", *shown.values(), "moved", "s", title=title)
    best = {
        name: (max if name in _LARGEST_IS_BEST else min)((e[name].value for _, e in found), default=0)
        for name in shown
    }
    for row, estimates in found:
        cells = [(name, estimates[name].value) for name in shown]
        texts = [f"{v:.4f}" if name == "nll" else f"{100 * v:.2f}" for name, v in cells]
        marked = [
            Text(text, style="bold" if value == best[name] else "")
            for text, (name, value) in zip(texts, cells, strict=True)
        ]
        moved = "" if math.isnan(row.moved) else f"{100 * row.moved:.2f}"
        table.add_row(row.method, *marked, moved, f"{row.seconds:.2f}")
    return table
