"""``calib-serve pack``: a model and its calibration as a TorchServe archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from calib_serve.errors import InputError

__all__ = ["run"]


def run(
    *,
    model: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time, also on 3.10
        typer.Option("--model", help="TorchScript, .pt2 or .onnx file, or module:factory."),
    ] = None,
    artifact: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--artifact", help="The folder that calib-serve fit wrote."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="What the model is called in URLs.")] = "",
    version: Annotated[str, typer.Option("--version", help="The model's version.")] = "1.0",
    out: Annotated[Path, typer.Option("-o", "--out", help="The model store.")] = Path("model_store"),
    weights: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--weights", help="A factory's weights, .safetensors."),
    ] = None,
    input_shape: Annotated[
        str, typer.Option("--input-shape", help="One input's shape, such as 3,224,224; -1 for any size.")
    ] = "",
    source: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--from", help="An archive that is served already, to be calibrated as it is."),
    ] = None,
    feedback: Annotated[
        bool, typer.Option("--feedback", help="Pack the model that labels come home to, instead.")
    ] = False,
    archives: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option("--for", help="With --feedback: an archive whose labels are welcome; may be repeated."),
    ] = None,
    handler: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--handler", help="Your own entry file, a subclass of ours."),
    ] = None,
    extra: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option("--extra", help="A file to carry along; may be repeated."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Workers, each with its copy of the model.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Most requests in one call of the model.")] = 8,
    batch_delay: Annotated[int, typer.Option(min=1, help="Milliseconds a request waits for others.")] = 5,
    outputs: Annotated[
        str, typer.Option(help="What the model returns: logits, probabilities or log_probabilities.")
    ] = "",
    abstain_below: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(min=0, max=1, help="Confidence under which a reply says abstain."),
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Carry what a worker needs of this package.")
    ] = False,
) -> None:
    """Pack a calibrated model into NAME.mar; the same inputs give the same bytes."""
    from calib_serve.fuse.torchserve import Batching, pack, pack_feedback, repack

    given = {"outputs": outputs or None, "abstain_below": abstain_below}
    options = {key: value for key, value in given.items() if value is not None}
    batching = Batching(workers=workers, batch_size=batch_size, delay=batch_delay)
    if feedback:
        path = pack_feedback(
            out,
            archives=archives or (),
            name=name or "calibration_feedback",
            version=version,
            standalone=standalone,
        )
    elif artifact is None or (model is None) == (source is None):
        raise InputError("say what to pack: --artifact DIR with --model MODEL or --from X.mar; or --feedback")
    elif source is not None:
        path = repack(source, artifact, out, name=name or None, standalone=standalone, **options)
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
            input_shape=_shape(input_shape) if input_shape else None,
            batching=batching,
            handler=handler,
            extra=extra or (),
            standalone=standalone,
            **options,
        )
    typer.echo(f"{path}  {path.stat().st_size:,} bytes")
    typer.echo(f"serve it with: calib-serve serve --store {path.parent} {path.name}")


def _shape(text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        raise InputError(f"--input-shape takes whole numbers, such as 3,224,224; got {text!r}") from None
