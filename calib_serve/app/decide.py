"""``calib-serve decide``: sets, abstention and actions, added to an artifact from held-out data."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from calib_serve.app._command import Flat, OfData, OfOutput, Output, command, refuse_existing
from calib_serve.app._data import held_out
from calib_serve.app._show import console
from calib_serve.core.options.base import fields_of
from calib_serve.core.options.data import HeldData
from calib_serve.core.options.evaluate import PromiseOptions

app = command(
    "decide",
    "calib-serve decide artifact scores.npz --split held --coverage 0.9 -o decided\n"
    "calib-serve decide artifact scores.npz --split held --cost costs.yaml -o decided\n"
    "calib-serve decide artifact images/ --model model.onnx --risk 0.05 -o decided",
    details="Thresholds are of DATA that the fit has not seen: scores with labels, or with --model its "
    "inputs. The probabilities stay as they are. Samples that the artifact knows from its fit are refused.",
)


@app.default
def _decide(
    artifact: Annotated[Path, Parameter(help="The artifact's folder.")],
    data: Annotated[str, Parameter(help="Samples that the fit has not seen.")],
    *,
    options: Annotated[PromiseOptions, Flat] = PromiseOptions(),
    source: Annotated[HeldData, OfData] = HeldData(),
    output: Annotated[Output, OfOutput],
) -> None:
    """Add prediction sets, abstention, or the action to take.

    An action is chosen by its cost, or of two classes class 1 from a
    threshold on that keeps a precision, a recall or a budget; class 1 is the
    second one.
    """
    from calib_serve.artifact import Artifact, promises
    from calib_serve.fit import decide, refuse_labels

    refuse_existing(output.out)
    known = Artifact.load(artifact)
    refuse_labels(known, None)
    found = decide(known, held_out(known, data, source), **fields_of(PromiseOptions, options))
    found.save(output.out)
    for sentence in (*promises(found), f"written to {output.out}"):
        console().print(sentence)
