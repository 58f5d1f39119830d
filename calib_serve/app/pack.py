"""``calib-serve pack``: a model and its calibration as a TorchServe archive."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from cyclopts import Parameter

from calib_serve.app._command import Flat, OfOutput, Replacing, command, pairs, panel
from calib_serve.app._data import PictureOptions, preprocessing
from calib_serve.app._show import command_line, console
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import check, fields_of
from calib_serve.core.options.pack import (
    AnswerOptions,
    ArchivePack,
    FeedbackPack,
    Handled,
    ModelPack,
    Packed,
    Wrapped,
)

app = command(
    "pack",
    "calib-serve pack --model model.pt2 --artifact artifact --name digits\n"
    "calib-serve pack --from served.mar --artifact artifact --probe-data requests\n"
    "calib-serve pack --feedback --for model_store/digits.mar",
    details="--model packs NAME.mar; --from puts a calibrated NAME-VERSION.mar beside the old archive, which "
    "stays as it is; --feedback packs the model that labels are sent to. Equal inputs give equal bytes.",
)

# Options of the other archives that one of feedback has, too.
_OF_FEEDBACK = ("feedback", "name", "version", "option")


@dataclass(frozen=True, kw_only=True)
class _What:
    """Options of the contents of an archive."""

    model: str | None = None
    """A .pt2, ONNX or TorchScript file."""
    from_: Path | None = None
    """An archive that is served already, to be calibrated as it is."""
    feedback: bool = False
    """Pack the model that labels are sent to, instead."""
    artifact: Path | None = None
    """The folder that calib-serve fit wrote."""


@dataclass(frozen=True, kw_only=True)
class _Options(Packed):
    """Options of packing."""

    name: str | None = None
    """What the model is called in URLs; with --from the old name if not given."""
    option: list[str] = field(default_factory=list)
    """A setting of the archive, KEY=VALUE: workers=2; of --model top=3, probabilities=false, threads=4,
    abstain_below=0.5 or max_pixels=1000000; of --from receipts=body; for labels threshold=0.4; of --feedback,
    as of the watch, maturity=6h, ttl_days=30, arl, tolerance or block."""


@dataclass(frozen=True, kw_only=True)
class _Around(Handled, Wrapped):
    """Settings of an archive of --from."""


@dataclass(frozen=True, kw_only=True)
class _OfModel(ModelPack, PictureOptions):
    """Options of --model alone."""


@dataclass(frozen=True, kw_only=True)
class _OfFeedback:
    """Options of --feedback alone."""

    for_: list[Path] = field(default_factory=list)
    """An archive whose labels are accepted; may be repeated."""


@dataclass(frozen=True, kw_only=True)
class _Store(Replacing):
    """Options of the output: the archive's place."""

    out: Annotated[Path, Parameter(name=("-o", "--out"))] = Path("model_store")
    """The model store that the archive is written to."""


@app.default
def _pack(
    *,
    what: Annotated[_What, Flat] = _What(),
    options: Annotated[_Options, Flat] = _Options(),
    of_model: Annotated[_OfModel, panel("With --model")] = _OfModel(),
    of_archive: Annotated[ArchivePack, panel("With --from")] = ArchivePack(),
    of_feedback: Annotated[_OfFeedback, panel("With --feedback")] = _OfFeedback(),
    store: Annotated[_Store, OfOutput] = _Store(),
) -> None:
    """Pack an archive."""
    from calib_serve.torchserve import read_archive, remarks

    if sum((what.model is not None, what.from_ is not None, what.feedback)) != 1 or (
        what.artifact is None and not what.feedback
    ):
        raise InputError("say what to pack: --artifact DIR with --model or --from X.mar; or --feedback")
    if what.feedback:
        _refuse("--feedback", of_model, of_archive, what, options)
        path = _feedback(options, of_feedback, store)
    elif what.from_ is not None:
        _refuse("--from", of_model, of_feedback)
        path = _around(what, options, of_archive, store)
    else:
        _refuse("--model", of_archive, of_feedback)
        path = _model(what, options, of_model, store)
    path = store.out / path.name
    out = console()
    out.print(f"{path}  {path.stat().st_size:,} bytes")
    for remark in remarks(read_archive(path, verify=False)):
        out.print(f"note: {remark}")
    beside = what.from_ is not None and what.from_.parent == store.out
    first = [what.from_.name] if what.from_ is not None and beside else []
    out.print(f"serve it with: {command_line('serve', '--store', path.parent, *first, path.name)}")
    out.print(
        "torchserve itself gives neither receipts nor series before it is told of a keyring "
        "(CALIB_SERVE_KEYRING) and of them (metrics_config): docs/torchserve.md, Without calib-serve serve"
    )


def _refuse(kind: str, *others: Any) -> None:
    """Raise InputError for a given option that this kind of archive does not use."""
    for one in others:
        for known in fields(one):
            given = getattr(one, known.name) != getattr(type(one)(), known.name)
            if given and known.name not in _OF_FEEDBACK:
                flag = known.name.replace("_", "-").rstrip("-")
                raise InputError(f"--{flag} does not go with {kind}; see calib-serve pack --help")


def _settings(options: _Options, kind: type[Handled | FeedbackPack]) -> dict[str, Any]:
    """Read ``--option``: settings of this kind of archive."""
    found, known = pairs(options.option, "--option"), get_type_hints(kind)
    for key, value in found.items():
        check(key in known, "option", f"takes {', '.join(known)} here, and no {key}")
        types = get_args(known[key]) or (known[key],)
        if str in types:
            found[key] = str(value)
            continue
        number = float in types and isinstance(value, int)
        fits = bool in types if isinstance(value, bool) else number or isinstance(value, types)
        check(fits, "option", f"{key} cannot be {value!r}")
    kind(**found)
    return found


def _feedback(options: _Options, of_feedback: _OfFeedback, store: _Store) -> Path:
    from calib_serve.torchserve import pack_feedback, staged

    named = {"name": options.name, "version": options.version}
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    given |= _settings(options, FeedbackPack)  # before a store is made
    with staged(store.out, force=store.force) as stage:
        return pack_feedback(stage, archives=of_feedback.for_, **given)


def _around(what: _What, options: _Options, of_archive: ArchivePack, store: _Store) -> Path:
    from calib_serve.torchserve import pack_around

    return pack_around(
        str(what.from_),
        str(what.artifact),
        store.out,
        name=options.name,
        force=store.force,
        **{**fields_of(Packed, options), **_settings(options, _Around)},
        **fields_of(ArchivePack, of_archive),
    )


def _model(what: _What, options: _Options, of_model: _OfModel, store: _Store) -> Path:
    from calib_serve.torchserve import check_class_mapping, pack, read_archive, staged

    if not options.name:
        raise InputError("give the model a name: --name NAME")
    given = {
        "pictures": preprocessing(of_model.pictures),
        **fields_of(Packed, options),
        **fields_of(ModelPack, of_model),
        **_settings(options, AnswerOptions),
    }
    with staged(store.out, force=store.force) as stage:
        path = pack(str(what.model), str(what.artifact), stage, name=options.name, **given)
        check_class_mapping(read_archive(path, verify=False))  # before it leaves the stage for the store
    return path
