"""An artifact on disk: its manifest and tensors, written and validated.

``manifest.yaml`` holds the sha256 of itself and of ``params.safetensors``. It is untrusted input: size,
aliases, depth, schema and hashes are checked before use.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from calib_serve.artifact.decisions import Choice, PredictionSets
from calib_serve.artifact.kept_rows import KeptRows
from calib_serve.artifact.steps import STEPS, Examples, Step
from calib_serve.core.errors import ArtifactError, InputError, IntegrityError, SchemaError
from calib_serve.core.files import read_whole, sha256
from calib_serve.scores import read_yaml

SCHEMA = 1
MANIFEST = "manifest.yaml"
PARAMS = "params.safetensors"
_MANIFEST_LIMIT = 1 << 20  # bytes; a manifest is a page or two
PARAMS_LIMIT = 1 << 30  # bytes; a head of a large model has some hundred millions


def pack_tensors(
    steps: Sequence[Step],
    examples: Examples | None = None,
    sets: PredictionSets | None = None,
    kept: KeptRows | None = None,
    choice: Choice | None = None,
) -> bytes:
    """Pack tensors as safetensors: ``step0.weight`` and so on, ``examples.logits``, ``sets.threshold``."""
    flat: dict[str, Any] = {
        f"step{i}.{name}": array for i, step in enumerate(steps) for name, array in step.tensors.items()
    }
    if examples is not None:
        flat |= {"examples.logits": examples.logits, "examples.probs": examples.probs}
    if sets is not None:
        flat["sets.threshold"] = sets.threshold
    if choice is not None and choice.costs is not None:
        flat["choice.costs"] = choice.costs
    if kept is not None:
        flat |= {"kept.inputs": kept.inputs, "kept.logits": kept.logits}
    return save_tensors({name: np.asarray(array, order="C") for name, array in flat.items()})


def step_facts(step: Step) -> dict[str, Any]:
    """The manifest's entry of a step, without its tensors."""
    return {"kind": step.kind, **step.options}


def unpack(
    facts: Sequence[Mapping[str, Any]],
    params: bytes,
    sets: Mapping[str, Any] | None = None,
    choice: Mapping[str, Any] | None = None,
) -> tuple[tuple[Step, ...], Examples | None, PredictionSets | None, KeptRows | None, Choice | None]:
    """Unpack steps, examples, prediction sets, kept rows and actions, as ``pack_tensors`` packs them.

    Every tensor must belong to one of them.
    """
    tensors = load_tensors(params)
    shown = [tensors.pop(f"examples.{name}", None) for name in ("logits", "probs")]
    examples = None if shown[0] is None or shown[1] is None else Examples(shown[0], shown[1])
    rows = [tensors.pop(f"kept.{name}", None) for name in ("inputs", "logits")]
    kept = None if rows[0] is None or rows[1] is None else KeptRows(rows[0].astype(np.uint8), rows[1])
    if sets is not None and "sets.threshold" not in tensors:
        raise SchemaError("the manifest names prediction sets, and there are no thresholds of them")
    found = None if sets is None else PredictionSets(tensors.pop("sets.threshold"), **sets)
    chosen = None if choice is None else Choice(costs=tensors.pop("choice.costs", None), **choice)
    steps = []
    for i, one in enumerate(facts):
        prefix = f"step{i}."
        own = {name[len(prefix) :]: tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
        kind = next((step for step in STEPS if step.kind == one["kind"]), None)
        if kind is None:
            known = [step.kind for step in STEPS]
            raise SchemaError(f"unknown step kind {one['kind']!r}; this version knows {known}")
        steps.append(kind.build(one, own))
        if own:
            raise SchemaError(f"step {i} has tensors it does not know: {sorted(own)}")
    if tensors:
        raise SchemaError(f"tensors that belong to no step: {sorted(tensors)}")
    return tuple(steps), examples, found, kept, chosen


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest without its own hash, after checking hash and schema."""
    text = read_bytes(path, limit=_MANIFEST_LIMIT)
    try:
        manifest = read_yaml(text)
    except ValueError as error:
        raise SchemaError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or "schema" not in manifest:
        raise SchemaError(f"{path} is not an artifact's manifest: it has no schema version")
    schema = manifest["schema"]
    if type(schema) is not int or schema != SCHEMA:
        newer = type(schema) is int and schema > SCHEMA
        raise SchemaError(
            f"{path} has schema {schema!r}, and this calib-serve reads schema {SCHEMA}; "
            + ("a newer calib-serve wrote it: upgrade" if newer else "fit the artifact again")
        )
    claimed = manifest.pop("sha256", None)
    try:
        actual = digest(manifest)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"{path} holds values that a manifest cannot: {error}") from error
    if claimed != actual:
        raise IntegrityError(f"{path} was changed after it was written; fit or copy it again")
    return manifest


def write_manifest(content: Mapping[str, Any]) -> str:
    """The text of a manifest; ArtifactError where it would be too large to be read again."""
    text: str = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    size = len(text.encode())
    if size > _MANIFEST_LIMIT:
        raise ArtifactError(
            f"the manifest would have {size} bytes, more than the {_MANIFEST_LIMIT} that are read: shorten "
            "the class names, or leave them out"
        )
    if text.count("\n") > 50_000:  # half as many values as are read
        try:
            read_yaml(text.encode())
        except ValueError as error:
            raise ArtifactError(f"the manifest could not be read again: {error}") from error
    return text


def json_or_yaml(text: bytes) -> Any:
    """Read JSON or YAML; JSON may be larger than YAML, which is bounded."""
    try:
        return json.loads(text)
    except ValueError:
        return read_yaml(text)


def read_bytes(path: Path, *, limit: int) -> bytes:
    """Read a file of an artifact; SchemaError above ``limit``, ArtifactError where unreadable."""
    try:
        return read_whole(path, limit=limit)
    except OSError as error:
        kind = SchemaError if error.errno == errno.EFBIG else ArtifactError
        raise kind(
            f"cannot read {path}: {error}; an artifact is a folder of {MANIFEST} and {PARAMS}"
        ) from error


def place_folder(new: Path, path: Path) -> None:
    """Move the folder ``new`` to ``path``; an existing folder is exchanged atomically and ends up at ``new``.

    Where the system cannot exchange folders (Linux can, on its own file systems), ``path`` is missing for a
    moment.
    """
    if not path.exists():
        new.rename(path)
    elif not _exchange(new, path):
        aside = new.with_name(f"{new.name}.old")
        path.rename(aside)
        try:
            new.rename(path)
        except OSError:
            aside.rename(path)
            raise
        aside.rename(new)


def folder_id(path: Path) -> tuple[int, ...] | None:
    """Identity and change time of the folder at ``path``; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _exchange(one: Path, other: Path) -> bool:
    if sys.platform != "linux":
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def digest(content: Mapping[str, Any]) -> str:
    """The sha256 of plain values, independent of their YAML spelling."""
    # JSON has one spelling where YAML has many.
    return sha256(json.dumps(content, sort_keys=True, allow_nan=False, ensure_ascii=False).encode())


def plain(value: Any, name: str) -> Any:
    """Convert ``value`` to types of both YAML and JSON; a metric that is NaN (undefined) becomes null."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise InputError(f"{name} holds an infinite number")
        return None if math.isnan(value) else float(value)  # an Estimate is more than a float
    if isinstance(value, Mapping):
        return {str(key): plain(item, name) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), name)
    if isinstance(value, Sequence):
        return [plain(item, name) for item in value]
    raise InputError(f"{name} holds a {type(value).__name__}; use strings, numbers, lists and mappings")
