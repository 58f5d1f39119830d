"""Write a calibrated TorchScript or torch.export file, of the kind the model's own file is."""

from __future__ import annotations

import inspect
import re
import warnings
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FuseError, ModelError
from calib_serve.core.files import sha256, write_atomically
from calib_serve.core.options.base import changed
from calib_serve.core.options.fuse import Made, TorchOptions
from calib_serve.fuse._decisions import decision_names
from calib_serve.fuse._parity import Parity
from calib_serve.fuse.proof import BATCH, PROOF, Against, required_proof
from calib_serve.fuse.torch._fuse import fused
from calib_serve.fuse.torch._model import Example
from calib_serve.fuse.torch._whole import parameters
from calib_serve.models import (
    is_torchscript,
    load_exported,
    load_torchscript,
    save_torchscript,
    warn_of_torchscript,
)
from calib_serve.scores import Outputs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import TorchKeywords

_MARK = "calib_serve.json"  # an extra file of the archive, with the artifact's fingerprint
_EXTRA = re.compile(r"(?:^|/)extra(?:_files)?/(.+)$")  # where archives keep such files
Kind = Literal["torchscript", "exported"]


@dataclass(frozen=True)
class TorchReport(Parity):
    """The kind and outputs of a fused file, and its parity with the calibration in numpy.

    Args:
        max_abs_diff: Largest difference of a probability.
        tolerance: Largest difference that rounding in the model's own type allows.
        samples: Number of inputs that were compared.
        near_edge: Number of inputs that are left out, near a table's edge.
        near_threshold: Number of decisions that are left out, near their threshold.
        engine: Runtime of the models.
        device: Device that it used.
        kind: "torchscript" or "exported".
        proof: What proves that the model gives the scores that were fitted, or "unproven".
        returns: What the fused model returns of the scores.
        outputs: Kind of the model's own scores.
        output: Where they lie in what it returns; empty: all of it.
        decisions: Names of the decisions that are returned.
        left_out: Decisions of the artifact that are not, and why.
        model: SHA-256 of the original file.
        artifact: Fingerprint of the artifact.
    """

    kind: Kind
    proof: str
    returns: Made
    outputs: Outputs
    output: str
    decisions: tuple[str, ...]
    left_out: tuple[str, ...]
    model: str
    artifact: str

    def rows(self) -> list[tuple[str, str]]:
        """List headings, which may be empty, and texts, for display."""
        return [
            ("kind", self.kind),
            ("proof", self.proof),
            ("scores", f"{self.outputs} in {self.output}" if self.output else self.outputs),
            ("returns", ", ".join((self.returns, *self.decisions))),
            *(("", what) for what in self.left_out),
            *super().rows(),
        ]


def fuse_torch(
    model_path: str | Path,
    artifact: Artifact,
    out_path: str | Path,
    options: TorchOptions | None = None,
    **keywords: Unpack[TorchKeywords],
) -> TorchReport:
    """Write a TorchScript or .pt2 model with the artifact inside, atomically.

    What was written is read again, run, and compared with the model calibrated in numpy: on
    ``inputs`` by name (or an npz of them), else on a .pt2's own example inputs, else on made-up ones of the
    shape that the artifact was fitted on. Loading TorchScript runs its code: load trusted files only.

    Args:
        model_path: The model, TorchScript or .pt2 of torch.export.
        artifact: The calibration that was fitted on this model's scores.
        out_path: The file to write, of the same kind.
        options: A ``TorchOptions``; keywords replace its fields.
        **keywords: Fields of ``TorchOptions``, which are those of ``calibrated`` and more: ``against``,
            ``inputs``, ``last_linear``, ``output``, ``outputs``, ``returns``, ``unproven``.

    Raises:
        ModelError: For a file that is neither TorchScript nor .pt2.
        FuseError: Where the artifact does not fit or is inside already, nothing proves that the model gives
            the scores that were fitted (unless ``unproven``), there are no inputs, or results differ.
    """
    asked = changed(options or TorchOptions(), keywords, fuse_torch)
    source, out = Path(model_path), Path(out_path)
    kind = _kind(source)
    if kind == "torchscript":
        warn_of_torchscript(source)
    hashed = sha256(source)
    proof = required_proof(artifact, lambda: hashed, source, asked, asked.inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch's own internals
        warnings.simplefilter("ignore", DeprecationWarning)
        loaded = _load(source, kind)
        if loaded.mark:
            raise FuseError(f"{source} is calibrated already ({loaded.mark[:12]}); fuse into the original")
        if isinstance(proof, Against):
            proof = proof.taking(parameters(loaded.module))
            asked = replace(asked, inputs=proof.rows(slice(BATCH)))
        example = _example(loaded, artifact, source, asked)
        fusion = fused(loaded.module, artifact, asked, example)
        if isinstance(proof, Against):
            proof = proof.prove(fusion.raw_logits(proof), source)
        try:
            with write_atomically(out) as partial:
                _write(fusion.whole, loaded, example, partial, {_MARK: artifact.fingerprint, PROOF: proof})
                # The written file is read again: the proof is of the file, not of the module in memory.
                whole, model = (_load(path, kind).evaluating for path in (partial, source))
                parity = fusion.prove(whole, model, example)
        except OSError as error:
            raise FuseError(f"cannot write {out}: {error}") from error
    return TorchReport(
        kind=kind,
        proof=proof,
        returns=asked.returns,
        outputs=fusion.scores.outputs,
        output=".".join(map(str, fusion.scores.path)),
        **vars(parity),
        decisions=decision_names(fusion.artifact),
        left_out=fusion.left_out,
        model=hashed,
        artifact=artifact.fingerprint,
    )


@dataclass(frozen=True, eq=False)
class _Loaded:
    """A model from a file; ``program`` if exported; ``mark``: the fingerprint of its artifact, or "".

    ``extra`` are the files that somebody packed beside it, such as class names and settings.
    """

    module: nn.Module
    program: torch.export.ExportedProgram | None
    mark: str
    extra: dict[str, Any]

    @property
    def evaluating(self) -> nn.Module:
        """The module in evaluation mode, in which an exported one is always."""
        return self.module.eval() if self.program is None else self.module


def _load(path: Path, kind: Kind) -> _Loaded:
    # Fused twice, a model would be calibrated twice: the mark in the file tells.
    found: dict[str, Any] = {_MARK: ""}
    if zipfile.is_zipfile(path):  # else the loader says what is wrong
        with zipfile.ZipFile(path) as archive:
            packed = [place for name in archive.namelist() if (place := _EXTRA.search(name))]
        # TorchScript gives the files alone that are asked for.
        found.update({place[1]: "" for place in packed})
    program = load_exported(path, found) if kind == "exported" else None
    module = load_torchscript(path, extra=found) if program is None else program.module()
    mark = found.pop(_MARK)
    return _Loaded(module, program, mark.decode() if isinstance(mark, bytes) else mark, found)


def _example(loaded: _Loaded, artifact: Artifact, source: Path, asked: TorchOptions) -> Example:
    if asked.inputs is not None:
        return Example.read(asked.inputs, loaded.module)
    own = None if loaded.program is None else loaded.program.example_inputs
    if own is not None:
        return Example(tuple(own[0]), own[1])
    made = Example.of_shape(loaded.module, artifact)
    if made is None:
        raise FuseError(
            f"{source} and the artifact do not say what the model takes, {parameters(loaded.module)}: give "
            "--inputs FILE.npz (inputs=) of them"
        )
    return made


def _write(whole: nn.Module, loaded: _Loaded, example: Example, out: Path, mark: dict[str, str]) -> None:
    extra = {**loaded.extra, **mark}
    if loaded.program is None:
        save_torchscript(whole, out, extra)
        return
    call, shapes = _freedom(loaded.program, example)
    like = _like(whole, loaded.module)
    try:
        # Exported anew: a program of torch.export cannot be edited and stay valid.
        again = torch.export.export(like, call.args, dict(call.named), dynamic_shapes=shapes)
    except Exception as error:
        raise FuseError(f"torch.export cannot export the calibrated model: {error}") from error
    torch.export.save(again, out, extra_files=extra)


def _freedom(program: torch.export.ExportedProgram, example: Example) -> tuple[Example, dict[str, Any]]:
    """Find a call, and the sizes of its inputs that are free, as in ``program``.

    Torch takes a size of 1 for a fixed one: where a free one is 1, the example is repeated.
    """
    args, named = program.example_inputs or (example.args, dict(example.named))
    wanted = program.graph_signature.user_inputs
    held = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    sizes = iter([getattr(held.get(str(name)), "shape", ()) for name in wanted])

    def both(leaf: Any) -> tuple[Any, Any]:
        own = next(sizes)
        if not isinstance(leaf, Tensor):
            return leaf, None
        free = [i for i, size in enumerate(own) if not isinstance(size, int)]
        for i in free:
            leaf = leaf.repeat_interleave(2, i) if leaf.shape[i] == 1 else leaf
        return leaf, dict.fromkeys(free, torch.export.Dim.AUTO)

    leaves, spec = pytree.tree_flatten((tuple(args), named))
    pairs = [both(leaf) for leaf in leaves]
    args, named = pytree.tree_unflatten([leaf for leaf, _ in pairs], spec)
    free_args, free_named = pytree.tree_unflatten([free for _, free in pairs], spec)
    names = inspect.signature(program.module().forward).parameters
    return Example(args, named), {**dict(zip(names, free_args, strict=False)), **free_named}


def _like(whole: nn.Module, model: nn.Module) -> nn.Module:
    """Wrap ``whole`` with the input names of ``model``; its results are plain tuples, readable anywhere."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = whole
            self.training = False

        def forward(self, *inputs: Any, **named: Any) -> Any:
            made = self.whole(*inputs, **named)
            return tuple(made) if isinstance(made, tuple) else made

    own = inspect.signature(model.forward)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    Plain.forward.__signature__ = own.replace(parameters=[this, *own.parameters.values()])  # type: ignore[attr-defined]
    return Plain()


def _kind(path: Path) -> Kind:
    if path.is_dir():
        raise ModelError(
            f"{path} is a folder, not a model file; load its model, such as Hugging Face's, and take "
            "calibrated(model, artifact, example=...)"
        )
    if not path.is_file():
        raise ModelError(f"there is no model file {path}")
    if is_torchscript(path):
        return "torchscript"
    if path.suffix == ".pt2":
        return "exported"
    raise ModelError(
        f"{path} is neither TorchScript nor a .pt2 of torch.export; an eager model needs calibrated()"
    )
