"""``calib-serve fit``: calibration data in, an artifact out."""

import zipfile
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from calib_serve.app._command import (
    Flat,
    Json,
    OfData,
    OfOutput,
    Output,
    Replacing,
    command,
    marks,
    pairs,
    refuse_existing,
)
from calib_serve.app._data import PictureOptions, preprocessing, refuse_file_options
from calib_serve.app._progress import stages
from calib_serve.app._show import (
    artifact_facts,
    artifact_tables,
    as_flags,
    command_line,
    console,
    note,
    print_json,
    show_verdict,
)
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import PYTHON, Factory, check, fields_of
from calib_serve.core.options.data import DataOptions
from calib_serve.core.options.fit import BySource, Prior

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact

app = command(
    "fit",
    "calib-serve fit scores.npz --split cal -o artifact\n"
    "calib-serve fit images/ --model model.pt2 --method neural-clamping -o artifact\n"
    "calib-serve fit requests/ --from served.mar -o artifact",
    details="DATA are scores with labels, or with --model or --from the inputs of what makes the scores.",
)
_LABELS = ("labels", "y")
_ARGUMENTS = ("archive", "data", "inputs", "options", "progress", "scores", "splits", "test", "train")
"""Arguments of the functions that fit, beside those that have an option: none is an option of a method."""
_FUSED = {".onnx": "onnx", ".pt2": "torch"}  # TorchScript and weights share .pt


@dataclass(frozen=True, kw_only=True)
class _Written(Output, Replacing, Json):
    """Options of the output: the artifact's place, and the display."""

    verbose: bool = False
    """Show candidates, certificates and all metrics."""


@dataclass(frozen=True, kw_only=True)
class _Options(Prior, BySource, PictureOptions):
    """Options of ``calib-serve fit``."""

    method: str = "auto"
    """A method's name (calib-serve methods lists them), or auto to choose by cross-validation."""
    option: list[str] = field(default_factory=list)
    """An option of the method or of the model, KEY=VALUE: see calib-serve methods NAME."""
    test_split: str | None = None
    """A split to measure before and after on; by default held-out folds."""
    keep_rows: bool = False
    """With --model: keep 32 rows of its scores with hashes of their inputs, by which fuse knows another
    export."""
    train_split: str | None = None
    """The split that a masked head trains on; by default a part of the calibration data."""


@app.default
def _fit(
    data: str,
    *,
    options: Annotated[_Options, Flat] = _Options(),
    source: Annotated[DataOptions, OfData] = DataOptions(),
    output: Annotated[_Written, OfOutput],
) -> None:
    """Fit on scores, a model or an archive, as the options say."""
    if not output.force:  # before a fit, which may take hours
        refuse_existing(output.out, unless="give --force to replace it")
    prior = None if options.prior is None else shares(options.prior)
    given = pairs(options.option, "--option")
    # A keyword of Python alone has no flag: here it may be given.
    declared = (one for of in (options, source, output) for one in fields(of))
    flags = {one.name for one in declared if PYTHON not in marks(one.type)}
    twice = [key for key in given if key in flags]
    check(not twice, "option", f"takes no {', '.join(twice)}: fit or schema has an option of that name")
    taken = [key for key in given if key in _ARGUMENTS]
    check(not taken, "option", f"takes no {', '.join(taken)}, which no method has")
    own = {"prior": prior, **given}
    # One name is no list to YAML, and a text would be taken for a list of letters.
    if isinstance(own.get("candidates"), str):
        own["candidates"] = [own["candidates"]]
    asked = source.model or source.from_
    check(options.by is None or asked is None, "by", "is a column beside scores, and DATA are inputs")
    if source.model is None:
        check(not options.pictures, "pictures", "are for the pictures of a model (--model)")
        check(not options.keep_rows, "keep_rows", "is for the rows that a model (--model) is run on")
        check(options.train_split is None, "train_split", "is for the masked head of a model (--model)")
    with stages(quiet=output.json) as progress:
        if source.from_ is not None:
            artifact = _of_archive(data, options, source, own, progress)
        elif source.model is not None:
            artifact = _of_model(data, options, source, own, progress)
        else:
            artifact = _of_scores(data, options, source, own, progress)
    artifact.save(output.out)
    if output.json:
        _print_json(artifact, output.out)
    else:
        _show(artifact, data, options, source, output)


def shares(text: str) -> Any:
    """Read class shares: numbers in order, or names with their shares; or a file of either, JSON or YAML.

    >>> shares("0.7,0.3"), shares("cat=0.7, dog=0.3")
    ([0.7, 0.3], {'cat': 0.7, 'dog': 0.3})
    """
    from calib_serve.core.files import read_whole
    from calib_serve.scores import read_yaml

    file = Path(text)
    if "=" not in text and "," not in text:
        try:
            text = read_whole(file).decode().strip()
        except (OSError, ValueError) as error:
            raise InputError(
                f"--prior: cannot read {text!r} as shares or as a file of them: {error}"
            ) from None
    try:
        if text.startswith(("[", "{")) or ":" in text:
            found = read_yaml(text.encode())
        elif "=" in text:
            found = pairs([part.strip() for part in text.replace("\n", ",").split(",") if part.strip()], "")
        else:
            found = text.replace("\n", ",").split(",")
        if isinstance(found, dict):
            return {str(name): float(share) for name, share in found.items()}
        return [float(share) for share in found]
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"--prior: class shares are numbers, or NAME=SHARE each: {error}") from None


def _of_scores(
    data: str, options: _Options, source: DataOptions, own: dict[str, Any], progress: Any
) -> "Artifact":
    from calib_serve.fit import calibrate
    from calib_serve.scores import Scores

    given = {"by": options.by, **source.of_file}
    read = {name: value for name, value in given.items() if value is not None}
    fitted = Scores.read(data, split=source.split, **read)
    note([fitted.reading])
    # Read before the fit: a split that does not exist should not cost one.
    test = None
    if options.test_split is not None:
        test = Scores.read(data, split=options.test_split, expected=fitted.schema, **read)
    return calibrate(fitted, method=options.method, test=test, progress=progress, **own)


def _of_archive(
    data: str, options: _Options, source: DataOptions, own: dict[str, Any], progress: Any
) -> "Artifact":
    from calib_serve.torchserve import calibrate_archive

    refuse_file_options(source, "--from")
    splits = (source.split, *([] if options.test_split is None else [options.test_split]))
    asked: dict[str, Any] = {
        "seam": source.seam,
        "outputs": source.kind,
    }
    archive = str(source.from_)
    return calibrate_archive(archive, data, options.method, splits=splits, progress=progress, **asked, **own)


def _of_model(
    data: str, options: _Options, source: DataOptions, own: dict[str, Any], progress: Any
) -> "Artifact":
    from calib_serve.fit import calibrate_model, remarked
    from calib_serve.models import model_data

    refuse_file_options(source, "--model")
    prepared = preprocessing(options.pictures)
    more = [split for split in (options.test_split, options.train_split) if split is not None]
    given, *others = parts = model_data(
        str(source.model), data, [source.split, *more], pictures=prepared, outputs=source.kind
    )
    pair = [(part.inputs, part.labels) for part in others]
    artifact = calibrate_model(
        str(source.model),
        given.inputs,
        given.labels,
        options.method,
        test=None if options.test_split is None else pair[0],
        train=None if options.train_split is None else pair[-1],
        class_names=given.class_names,
        pictures=given.pictures,
        keep_rows=options.keep_rows,
        **fields_of(Factory, source),
        outputs=source.kind,
        progress=progress,
        **own,
    )
    return remarked(artifact, after=[remark for part in parts for remark in part.remarks])


def _print_json(artifact: "Artifact", out: Path) -> None:
    from calib_serve.fit import verdict

    found = {"artifact": str(out), "verdict": verdict(artifact).as_dict()}
    print_json({**found, **artifact_facts(artifact)})


def _show(artifact: "Artifact", data: str, options: _Options, source: DataOptions, output: _Written) -> None:
    """Print the verdict first, then the artifact's place, and the commands that come next."""
    from calib_serve.fit import verdict

    out, found = console(), verdict(artifact)
    show_verdict(out, found, every=output.verbose)
    for remark in (*(() if output.verbose else found.reasons), *artifact.fit.remarks):
        out.print(f"note: {remark}")
    if output.verbose:
        for table in artifact_tables(artifact):
            out.print(table)
    samples, on = artifact.data.get("samples"), artifact.data.get("measured_on", "")
    fitted = f"{artifact.method} fitted" + (f" on {samples:,} samples" if samples else "")
    measured = f", measured on {on}" if artifact.after else ""
    out.print(f"{fitted}{measured}; written to {output.out}")
    for i, line in enumerate(_next_commands(artifact, data, options, source, output.out)):
        out.print(f"{'      ' if i else 'next: '}{line}")


def _next_commands(
    artifact: "Artifact", data: str, options: _Options, source: DataOptions, out: Path
) -> list[str]:
    """The commands that can be run after a fit: for a report, a fused model, all facts.

    A report is of samples that nothing was fitted to: the test split, or another one of the file.
    """
    found = []
    held = options.test_split or _other_split(Path(data), source.split)
    if held is not None and source.from_ is None:
        of = [data, *as_flags(replace(source, split=held), DataOptions), "--artifact", out]
        # A page is drawn by packages of an extra, which this host may not have.
        drawn = find_spec("matplotlib") is not None
        page = ["--report", f"{out.absolute().name}.html"] if drawn else []
        found.append(command_line("evaluate", *of, *page))
    ending = "" if source.model is None else Path(source.model).suffix
    if ending in _FUSED and artifact.steps:
        of = [_FUSED[ending], source.model, out, *as_flags(source, Factory)]
        found.append(command_line("fuse", *of, "-o", f"calibrated-{Path(str(source.model)).name}"))
    return [*found, command_line("inspect", out)]


def _other_split(path: Path, split: str | None) -> str | None:
    """Find the split of an npz file that is called test, or the only one beside ``split``."""
    if split is None or not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
    ends = tuple(f"_{name}" for name in _LABELS)
    others = sorted({name.rpartition("_")[0] for name in names if name.endswith(ends)} - {split, "train"})
    if "test" in others:
        return "test"
    return others[0] if len(others) == 1 else None
