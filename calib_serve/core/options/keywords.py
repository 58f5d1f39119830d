"""The keywords of public functions, by the options classes that hold them: for readers and type checkers.

Written by scripts/keywords.py. Nothing is imported from here when the program runs. ``XKeywords`` are the
fields of ``XOptions``; those of a fit, of a model or of an archive, and the options of its methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import ArrayLike

    from calib_serve.core.options.data import Kind


class SeededKeywords(TypedDict, total=False):
    seed: int


class GraphKeywords(TypedDict, total=False):
    against: Any
    decisions: bool
    inputs: Any
    output_name: str | None
    outputs: Kind | None
    unproven: bool


class PackedKeywords(TypedDict, total=False):
    against: Any
    batch_size: int | None
    flush_seconds: float
    outputs: Kind | None
    threshold: float
    unproven: bool
    version: str | None
    workers: int | None


class ScoresKeywords(TypedDict, total=False):
    class_names: Sequence[str] | None
    columns: Sequence[str] | None
    groups: Any
    ignore_label: Any
    missing: Sequence[str] | None
    outputs: str | None
    sample_weight: Any
    schema: Any


class EvaluateKeywords(SeededKeywords, ScoresKeywords, total=False):
    bins: int
    edges: Literal["right", "left"]
    level: float
    replicates: int


class CompareKeywords(SeededKeywords, ScoresKeywords, total=False):
    replicates: int


class JudgeKeywords(ScoresKeywords, total=False):
    class_tolerance: float | None
    tolerance: float


class DecideKeywords(SeededKeywords, ScoresKeywords, total=False):
    budget: float | None
    cost: Any
    coverage: float | None
    known_refused: float | None
    level: float
    per_class: bool
    precision: float | None
    recall: float | None
    risk: float | None
    score: Literal["lac", "aps", "raps"]


class ReportKeywords(SeededKeywords, total=False):
    bins: int
    bounds: Any
    class_names: Sequence[str]
    class_tolerance: float | None
    edges: Literal["right", "left"]
    groups: Any
    names: tuple[str, str]
    own: str | None
    replicates: int
    sample_weight: Any
    tolerance: float
    tree: Any


class AuditKeywords(TypedDict, total=False):
    bins: int
    by: Sequence[str] | None
    class_names: Sequence[str] | None
    confidence_of: Any
    engine: str | None
    every: Any
    ignore_label: Any
    missing: Literal["chance", "unknown"]
    outputs: Literal["probabilities", "percent", "log_probs"] | None
    since: Any
    skip_invalid: bool
    tolerance: float
    unique_ids: bool
    until: Any


class RefitKeywords(SeededKeywords, ScoresKeywords, total=False):
    alpha: float
    method: str


class ServedRefitKeywords(SeededKeywords, total=False):
    alpha: float
    days: float
    method: str
    model: str


class ArchiveKeywords(TypedDict, total=False):
    batch_size: int | None
    outputs: Kind | None
    probe_timeout: float
    seam: str | None


class OnnxKeywords(GraphKeywords, total=False):
    custom_ops: str | Path | None
    returns: Literal["same", "probabilities", "all"]
    runtime: Sequence[str]


class ModuleKeywords(TypedDict, total=False):
    last_linear: str | None
    output: str | None
    outputs: Kind | None
    returns: Literal["probabilities", "logits", "all"]


class TorchKeywords(ModuleKeywords, total=False):
    against: Any
    inputs: Any
    unproven: bool


class TritonKeywords(GraphKeywords, total=False):
    backend: Literal["onnxruntime", "python"]
    device: Literal["gpu", "cpu"]
    max_batch: int
    receipts: bool
    version: int


class PackKeywords(PackedKeywords, total=False):
    abstain_below: float | None
    input_shape: Sequence[int | None] | None
    inputs: Any
    last_linear: str | None
    max_pixels: int
    probabilities: bool
    shadow: Any
    threads: int | None
    top: int


class AroundKeywords(PackedKeywords, ArchiveKeywords, total=False):
    probe_data: str | None
    receipts: Literal["header", "body"]
    untried: bool


class FeedbackKeywords(TypedDict, total=False):
    arl: float | None
    block: int | None
    flush_seconds: float
    maturity: str | None
    tolerance: float | None
    ttl_days: float


class LabelKeywords(TypedDict, total=False):
    by: Literal["id", "name"] | None
    id_column: str | None
    label_column: str
    receipt_column: str | None
    refused: str | Path | None
    replaces: bool
    url: str


class CollectKeywords(TypedDict, total=False):
    by: Literal["id", "name"] | None
    id_column: str | None
    label_column: str
    receipt_column: str | None
    replaces: bool
    url: str
    wait: Any


class WatchKeywords(TypedDict, total=False):
    arl: float
    block: int
    follow: str | Path | None
    keyring: Any
    label_budget: Any
    ledger: Any
    maturity: Any
    sample_days: float
    sample_rate: float
    samples: Any
    segments: Any
    tolerance: float
    ttl_days: float


class GatewayKeywords(TypedDict, total=False):
    allowed_hosts: Sequence[str]
    grpc_port: int | None
    grpc_upstream: str | None
    host: str
    keyring: Any
    label_budget: str
    ledger: str | None
    log_format: Literal["text", "json"]
    max_megabytes: float
    output: Sequence[str]
    port: int
    scores: Sequence[str]
    shadow: Sequence[str]
    timeout: float
    tls_cert: str | Path | None
    tls_key: str | Path | None
    token_file: str | Path | None
    trust_headers: bool
    upstream: str
    watch: Any
    watch_token_file: str | None


class ServeKeywords(TypedDict, total=False):
    folder: str | Path
    keyring: str | Path | None
    ledger: str | Path | None
    properties: str | Path | None
    samples: str | Path | None


class MethodKeywords(TypedDict, total=False):
    bins: int
    grid: Literal["fine", "medium", "coarse"] | ArrayLike
    of: Literal["top", "each"] | None
    smoothing: float


class FitMethodKeywords(MethodKeywords, total=False):
    candidates: Sequence[str] | None
    folds: int
    keep_predictions: bool


class FitKeywords(SeededKeywords, ScoresKeywords, FitMethodKeywords, total=False):
    by: Any
    class_weight: Any
    cross_validate: bool
    prior: Any


class ArchiveFitKeywords(SeededKeywords, ArchiveKeywords, FitMethodKeywords, total=False):
    prior: Any


class ModelFitKeywords(SeededKeywords, FitMethodKeywords, total=False):
    batch_size: int
    class_names: Sequence[str]
    class_weight: Any
    cross_validate: bool
    custom_ops: str | Path | None
    device: str | None
    gamma: Literal["paper"] | float | Sequence[float]
    input_range: tuple[float, float] | None
    input_shape: Any
    keep_rows: bool
    last_linear: str | None
    normalisation: tuple[ArrayLike, ArrayLike] | None
    output_name: str | None
    outputs: Any
    penalty: Literal["tenth"] | float
    pictures: Any
    prior: Any
    reading: Literal["expected", "paper", "no-mask"]
    resolution: Literal["auto"] | int | Sequence[int | None] | None
    sample_weight: Any
    schedule: Literal["ours", "paper"]
    start: Literal["random", "data"]
    then: str | None
    train: Any
    weights: str | Path | None
