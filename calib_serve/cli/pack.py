"""``calib-serve pack``: a model and its calibration as a TorchServe archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from calib_serve.cli import pictures
from calib_serve.cli.options import Outputs, ProbeTimeout
from calib_serve.errors import InputError

__all__ = ["run"]

_ANY = {"name", "version", "out", "standalone", "force"}
_TAKES = {
    "--feedback": _ANY | {"feedback", "archives", "arl", "tolerance", "block", "maturity"},
    "--from": _ANY
    | {"source", "artifact", "outputs", "threshold", "extra", "workers", "batch_size", "batch_delay"}
    | {"seam", "output", "probe", "probe_data", "probe_timeout", "no_probe", "receipts"},
    "--model": _ANY
    | {"model", "artifact", "weights", "input_shape", "handler", "extra"}
    | {"workers", "batch_size", "batch_delay", "outputs", "threshold", "abstain_below", "shadow"}
    | {"transforms", "mean", "std", "image_size", "resize_shorter", "crop", "interpolation", "max_pixels"}
    | {"top", "probabilities", "threads", "flush_seconds"},
}


def run(
    context: typer.Context,
    *,
    model: Annotated[
        str | None, typer.Option("--model", help=".pt2, ONNX or TorchScript file, or module:factory.")
    ] = None,
    artifact: Annotated[
        Path | None, typer.Option("--artifact", help="The folder that calib-serve fit wrote.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What the model is called in URLs.")] = None,
    version: Annotated[
        str, typer.Option("--version", help="The model's version; with --from OLD-calibrated.")
    ] = "1.0",
    out: Annotated[Path, typer.Option("-o", "--out", help="The model store.")] = Path("model_store"),
    weights: Annotated[
        Path | None, typer.Option("--weights", help="A factory's weights, .safetensors.")
    ] = None,
    input_shape: Annotated[
        str | None,
        typer.Option(help="One input's shape, such as 3,224,224; -1 for any size."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="An archive that is served already (.mar, .tar.gz, folder), to be calibrated as it is.",
        ),
    ] = None,
    feedback: Annotated[
        bool, typer.Option("--feedback", help="Pack the model that labels are sent to, instead.")
    ] = False,
    archives: Annotated[
        list[Path] | None,
        typer.Option("--for", help="With --feedback: an archive whose labels are accepted; may be repeated."),
    ] = None,
    handler: Annotated[
        Path | None, typer.Option("--handler", help="Your own entry file, a subclass of ours.")
    ] = None,
    extra: Annotated[
        list[Path] | None, typer.Option("--extra", help="A file to carry along; may be repeated.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Workers, each with its copy of the model.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Most requests in one call of the model.")] = 8,
    batch_delay: Annotated[int, typer.Option(min=1, help="Milliseconds a request waits for others.")] = 5,
    outputs: Outputs = None,
    threshold: Annotated[
        float, typer.Option("--threshold", help="From which probability on a label of several is predicted.")
    ] = 0.5,
    shadow: Annotated[
        Path | None,
        typer.Option("--shadow", help="Another artifact, of which receipts say what it would have served."),
    ] = None,
    abstain_below: Annotated[
        float | None, typer.Option(min=0, max=1, help="Confidence under which a reply says abstain.")
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=0, help="Classes that a reply lists, likeliest first.")
    ] = 5,
    probabilities: Annotated[
        bool, typer.Option("--probabilities/--no-probabilities", help="Whether a reply lists all of them.")
    ] = True,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Cores of a worker; default: shared evenly.")
    ] = None,
    flush_seconds: Annotated[
        float, typer.Option("--flush-seconds", min=0.01, help="Seconds between a worker's reports.")
    ] = 1.0,
    transforms: pictures.Transforms = None,
    mean: pictures.Mean = None,
    std: pictures.Std = None,
    image_size: pictures.ImageSize = None,
    resize_shorter: pictures.ResizeShorter = None,
    crop: pictures.Crop = None,
    interpolation: pictures.Interpolation = None,
    max_pixels: Annotated[
        int, typer.Option("--max-pixels", min=1, help="The most pixels of a picture that is sent.")
    ] = 25_000_000,
    arl: Annotated[
        float | None, typer.Option(help="With --feedback: as of watch, like the next three.")
    ] = None,
    tolerance: Annotated[float | None, typer.Option(help="How far accuracy may be from confidence.")] = None,
    block: Annotated[int | None, typer.Option(help="Labels that may depend on one another.")] = None,
    maturity: Annotated[str | None, typer.Option(help="Age at which labels are in, such as 6h.")] = None,
    seam: Annotated[
        str | None,
        typer.Option("--seam", help="With --from: where the class scores pass, such as model; else found."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", help="With --from: the scores' key or place in what passes.")
    ] = None,
    probe: Annotated[
        Path | None, typer.Option("--probe", help="With --from: a request to try it with; else one made up.")
    ] = None,
    probe_data: Annotated[
        str | None,
        typer.Option("--probe-data", help="With --from: samples to try it with, as for fit --data."),
    ] = None,
    probe_timeout: ProbeTimeout = None,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="With --from: pack without trying; its packages are not here.")
    ] = False,
    receipts: Annotated[
        Literal["header", "body"], typer.Option("--receipts", help="With --from: where replies carry them.")
    ] = "header",
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Carry what a worker needs of this package.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace another archive of that name.")] = False,
) -> None:
    """Pack a calibrated model into NAME.mar, or with --from into NAME-VERSION.mar beside the old archive.

    The same inputs give the same bytes. No archive that is there is replaced without --force, and the one
    that --from names never.
    """
    from calib_serve.fuse.torchserve import (
        Batching,
        check_names,
        pack,
        pack_around,
        pack_feedback,
        read_archive,
        remarks,
        staged,
    )

    given = _refuse_others(context, "--feedback" if feedback else "--from" if source else "--model")
    if feedback:
        with staged(out, force=force) as stage:
            path = pack_feedback(
                stage,
                archives=archives or (),
                name=name or "calibration_feedback",
                version=version,
                standalone=standalone,
                arl=arl,
                tolerance=tolerance,
                block=block,
                maturity=maturity,
            )
    elif artifact is None or (model is None and source is None):
        raise InputError("say what to pack: --artifact DIR with --model or --from X.mar; or --feedback")
    elif source is not None:
        waiting: dict[str, Any] = {} if probe_timeout is None else {"probe_timeout": probe_timeout}
        path = pack_around(
            source,
            artifact,
            out,
            name=name,
            version=version if "version" in given else None,
            workers=workers if "workers" in given else None,
            batch_size=batch_size if "batch_size" in given else None,
            batch_delay=batch_delay if "batch_delay" in given else None,
            extra=extra or (),
            standalone=standalone,
            outputs=outputs,
            threshold=threshold,
            seam=seam,
            output=output,
            receipts=receipts,
            trial=not no_probe,
            probe=probe,
            probe_data=probe_data,
            force=force,
            **waiting,
        )
    else:
        if not name:
            raise InputError("give the model a name: --name NAME")
        with staged(out, force=force) as stage:
            path = pack(
                str(model),
                artifact,
                stage,
                name=name,
                version=version,
                weights=weights,
                input_shape=None if input_shape is None else _shape(input_shape),
                batching=Batching(workers=workers, batch_size=batch_size, delay=batch_delay),
                handler=handler,
                extra=extra or (),
                standalone=standalone,
                outputs=outputs,
                threshold=threshold,
                abstain_below=abstain_below,
                shadow=shadow,
                top=top,
                probabilities=probabilities,
                threads=threads,
                flush_seconds=flush_seconds,
                pictures=pictures.preprocessing(
                    transforms=transforms,
                    mean=mean,
                    std=std,
                    image_size=image_size,
                    resize_shorter=resize_shorter,
                    crop=crop,
                    interpolation=interpolation,
                ),
                max_pixels=max_pixels,
            )
            check_names(read_archive(path, verify=False))
    path = out / path.name
    typer.echo(f"{path}  {path.stat().st_size:,} bytes")
    for remark in remarks(read_archive(path, verify=False)):
        typer.echo(f"note: {remark}")
    first = f"{source.name} " if source is not None and source.parent == out else ""
    typer.echo(f"serve it with: calib-serve serve --store {path.parent} {first}{path.name}")
    typer.echo(
        "torchserve itself gives neither receipts nor series before it is told of a keyring "
        "(CALIB_SERVE_KEYRING) and of them (metrics_config): docs/serving.md, Without calib-serve serve"
    )


def _refuse_others(context: typer.Context, what: str) -> set[str]:
    """The options that are given; one that this kind of archive has no use for must not pass in silence."""
    found = set()
    for parameter in context.command.params:
        origin = context.get_parameter_source(str(parameter.name))
        if origin is None or origin.name != "COMMANDLINE":
            continue
        if parameter.name not in _TAKES[what]:
            raise InputError(f"{parameter.opts[0]} does not go with {what}; see calib-serve pack --help")
        found.add(str(parameter.name))
    return found


def _shape(text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        raise InputError(f"--input-shape takes whole numbers, such as 3,224,224; got {text!r}") from None
