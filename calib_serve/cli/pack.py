"""``calib-serve pack``: a model and its calibration as a TorchServe archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from calib_serve.errors import InputError

__all__ = ["run"]

_ANY = {"name", "out", "standalone"}
_TAKES = {
    "--feedback": _ANY | {"feedback", "archives", "version", "arl", "tolerance", "block", "maturity"},
    "--from": _ANY | {"source", "artifact", "outputs"},
    "--model": _ANY
    | {"model", "artifact", "version", "weights", "input_shape", "handler", "extra"}
    | {"workers", "batch_size", "batch_delay", "outputs", "abstain_below"},
}


def run(
    context: typer.Context,
    *,
    model: Annotated[
        str | None, typer.Option("--model", help="TorchScript, .pt2 or .onnx file, or module:factory.")
    ] = None,
    artifact: Annotated[
        Path | None, typer.Option("--artifact", help="The folder that calib-serve fit wrote.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What the model is called in URLs.")] = None,
    version: Annotated[str, typer.Option("--version", help="The model's version.")] = "1.0",
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
        typer.Option("--from", help="An archive that is served already, to be calibrated as it is."),
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
    outputs: Annotated[
        Literal["logits", "log_probs", "probabilities"] | None,
        typer.Option(help="What the model returns, where the artifact does not say."),
    ] = None,
    abstain_below: Annotated[
        float | None, typer.Option(min=0, max=1, help="Confidence under which a reply says abstain.")
    ] = None,
    arl: Annotated[
        float | None, typer.Option(help="With --feedback: as of watch, like the next three.")
    ] = None,
    tolerance: Annotated[float | None, typer.Option(help="How far accuracy may be from confidence.")] = None,
    block: Annotated[int | None, typer.Option(help="Labels that may depend on one another.")] = None,
    maturity: Annotated[str | None, typer.Option(help="Age at which labels are in, such as 6h.")] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Carry what a worker needs of this package.")
    ] = False,
) -> None:
    """Pack a calibrated model into NAME.mar; the same inputs give the same bytes."""
    from calib_serve.fuse.torchserve import Batching, pack, pack_around, pack_feedback

    _refuse_others(context, "--feedback" if feedback else "--from" if source else "--model")
    if feedback:
        path = pack_feedback(
            out,
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
        path = pack_around(source, artifact, out, name=name, standalone=standalone, outputs=outputs)
    else:
        if not name:
            raise InputError("give the model a name: --name NAME")
        path = pack(
            str(model),
            artifact,
            out,
            name=name,
            version=version,
            weights=weights,
            input_shape=None if input_shape is None else _shape(input_shape),
            batching=Batching(workers=workers, batch_size=batch_size, delay=batch_delay),
            handler=handler,
            extra=extra or (),
            standalone=standalone,
            outputs=outputs,
            abstain_below=abstain_below,
        )
    typer.echo(f"{path}  {path.stat().st_size:,} bytes")
    typer.echo(f"serve it with: calib-serve serve --store {path.parent} {path.name}")


def _refuse_others(context: typer.Context, what: str) -> None:
    """An option that this kind of archive has no use for must not pass in silence."""
    for parameter in context.command.params:
        origin = context.get_parameter_source(str(parameter.name))
        given = origin is not None and origin.name == "COMMANDLINE"
        if given and parameter.name not in _TAKES[what]:
            raise InputError(f"{parameter.opts[0]} does not go with {what}; see calib-serve pack --help")


def _shape(text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        raise InputError(f"--input-shape takes whole numbers, such as 3,224,224; got {text!r}") from None
