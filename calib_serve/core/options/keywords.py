"""The keywords of public functions, by the options classes that hold them: for readers and type checkers.

Written by scripts/keywords.py. Nothing is imported from here when the program runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import ArrayLike

    from calib_serve.core.options.data import Kind


class ScoresKeywords(TypedDict, total=False):
    """Fields of ``ScoresOptions``."""

    class_names: Sequence[str] | None
    columns: Sequence[str] | None
    groups: Any
    ignore_label: Any
    missing: Sequence[str] | None
    outputs: str | None
    sample_weight: Any
    schema: Any


class EvaluateKeywords(ScoresKeywords, total=False):
    """Fields of ``EvaluateOptions``."""

    bins: int
    edges: Literal["right", "left"]
    level: float
    replicates: int
    seed: int


class CompareKeywords(ScoresKeywords, total=False):
    """Fields of ``CompareOptions``."""

    replicates: int
    seed: int


class JudgeKeywords(ScoresKeywords, total=False):
    """Fields of ``JudgeOptions``."""

    class_tolerance: float | None
    tolerance: float


class DecideKeywords(ScoresKeywords, total=False):
    """Fields of ``DecideOptions``."""

    coverage: float | None
    free_ranks: int | None
    level: float
    penalty: float | None
    per_class: bool
    risk: float | None
    score: Literal["lac", "aps", "raps"]
    seed: int


class ReportKeywords(TypedDict, total=False):
    """Fields of ``ReportOptions``."""

    bins: int
    class_names: Sequence[str]
    class_tolerance: float | None
    edges: Literal["right", "left"]
    groups: Any
    names: tuple[str, str]
    own: str | None
    replicates: int
    sample_weight: Any
    seed: int
    target_risk: float | None
    tolerance: float


class AuditKeywords(TypedDict, total=False):
    """Fields of ``AuditOptions``."""

    bins: int
    by: Sequence[str] | None
    class_names: Sequence[str] | None
    confidence_of: Any
    engine: str | None
    every: Any
    ignore_label: Any
    memory: str
    missing: Literal["chance", "unknown"]
    outputs: Literal["probabilities", "percent", "log_probs"] | None
    password_file: str | Path | None
    ranks: bool
    since: Any
    skip_invalid: bool
    temporary: str | Path | None
    threads: int | None
    tolerance: float
    unique_ids: bool
    until: Any


class ContractKeywords(TypedDict, total=False):
    """Fields of ``ContractOptions``."""

    level: float
    predictions_per_day: float | None
    replicates: int
    seed: int
    segments: Any


class PlanKeywords(TypedDict, total=False):
    """Fields of ``PlanOptions``."""

    kept: int
    power: float
    predictions_per_day: float | None
    seed: int


class RefitKeywords(ScoresKeywords, total=False):
    """Fields of ``RefitOptions``."""

    alpha: float
    method: str
    seed: int


class ServedRefitKeywords(TypedDict, total=False):
    """Fields of ``ServedRefitOptions``."""

    alpha: float
    days: float
    method: str
    model: str
    seed: int


class ArchiveKeywords(TypedDict, total=False):
    """Fields of ``ArchiveOptions``."""

    batch_size: int | None
    outputs: Kind | None
    probe_timeout: float
    seam: str | None


class OnnxKeywords(TypedDict, total=False):
    """Fields of ``OnnxOptions``."""

    against: Any
    custom_ops: str | Path | None
    decisions: bool
    device: str
    features: str | None
    input_name: str | None
    inputs: Any
    keep_raw: bool
    normalization: Any
    output_name: str | None
    outputs: Kind | None
    returns: Literal["same", "probabilities", "all"]
    samples: int
    strict: bool
    unproven: bool


class ModuleKeywords(TypedDict, total=False):
    """Fields of ``ModuleOptions``."""

    decisions: bool
    fold: bool
    last_linear: str | None
    output: str | None
    outputs: Kind | None
    returns: Literal["probabilities", "logits", "all"]


class TorchKeywords(ModuleKeywords, total=False):
    """Fields of ``TorchOptions``."""

    against: Any
    device: str
    input_shape: Sequence[int] | None
    inputs: Any
    samples: int
    unproven: bool


class TritonKeywords(TypedDict, total=False):
    """Fields of ``TritonOptions``."""

    against: Any
    backend: Literal["onnxruntime", "python"]
    decisions: bool
    delay: int
    device: Literal["gpu", "cpu"]
    features: str | None
    input_name: str | None
    inputs: Any
    instances: int
    max_batch: int
    normalization: Any
    output_name: str | None
    outputs: Kind | None
    receipts: bool
    samples: int
    strict: bool
    tensorrt: Literal["FP32", "FP16"] | None
    trt_cache: str | None
    unproven: bool
    version: int
    versions: int


class PackKeywords(TypedDict, total=False):
    """Fields of ``PackOptions``."""

    abstain_below: float | None
    against: Any
    allow_cpu_fallback: bool
    extra: Sequence[str | Path]
    flush_seconds: float
    handler: str | Path | None
    input_dtype: str | None
    input_shape: Sequence[int | None] | None
    inputs: Any
    last_linear: str | None
    max_pixels: int
    outputs: Kind | None
    probabilities: bool
    shadow: Any
    standalone: bool
    threads: int | None
    threshold: float
    top: int
    unproven: bool
    version: str | None
    weights: str | Path | None


class AroundKeywords(ArchiveKeywords, total=False):
    """Fields of ``AroundOptions``."""

    against: Any
    batch_delay: int | None
    extra: Sequence[str | Path]
    flush_seconds: float
    last_linear: str | None
    probe: str | Path | None
    probe_data: str | None
    receipts: Literal["header", "body"]
    standalone: bool
    threshold: float
    unproven: bool
    untried: bool
    version: str | None
    workers: int | None


class FeedbackKeywords(TypedDict, total=False):
    """Fields of ``FeedbackOptions``."""

    arl: float | None
    block: int | None
    flush_seconds: float
    keyring: str | None
    ledger: str | None
    maturity: str | None
    standalone: bool
    tolerance: float | None
    ttl_days: float


class LabelKeywords(TypedDict, total=False):
    """Fields of ``LabelOptions``."""

    batch: int
    by: Literal["id", "name"] | None
    id_column: str | None
    label_column: str
    receipt_column: str | None
    refused: str | Path | None
    replaces: bool
    tries: int
    url: str


class CollectKeywords(TypedDict, total=False):
    """Fields of ``CollectOptions``."""

    batch: int
    by: Literal["id", "name"] | None
    every: float
    id_column: str | None
    label_column: str
    receipt_column: str | None
    replaces: bool
    settle: float
    state: str | Path
    wait: Any


class DriftKeywords(TypedDict, total=False):
    """Fields of ``DriftOptions``."""

    arl: float
    block: int
    tolerance: float


class WatchKeywords(DriftKeywords, total=False):
    """Fields of ``WatchOptions``."""

    follow: str | Path | None
    keyring: Any
    label_budget: Any
    ledger: Any
    maturity: Any
    sample_days: float
    sample_rate: float
    samples: Any
    segments: Any
    ttl_days: float


class AppKeywords(TypedDict, total=False):
    """Fields of ``AppOptions``."""

    allowed_hosts: Sequence[str]
    max_megabytes: float
    max_versions: int
    max_waiting: int
    runbooks: str
    token_file: str | Path | None


class ListenKeywords(TypedDict, total=False):
    """Fields of ``ListenOptions``."""

    host: str
    max_connections: int
    port: int
    request_seconds: float
    root_path: str
    tls_cert: str | Path | None
    tls_key: str | Path | None


class GatewayKeywords(AppKeywords, ListenKeywords, total=False):
    """Fields of ``GatewayOptions``."""

    grpc_port: int | None
    grpc_upstream: str | None
    keyring: Any
    label_budget: str
    ledger: str | None
    log_format: Literal["text", "json"]
    output: Sequence[str]
    samples: str | None
    scores: Sequence[str]
    shadow: Sequence[str]
    timeout: float
    trust_headers: bool
    upstream: str
    watch: Any
    watch_token_file: str | None


class ServeKeywords(TypedDict, total=False):
    """Fields of ``ServeOptions``."""

    folder: str | Path
    keyring: str | Path | None
    label_budget: Any
    ledger: str | Path | None
    properties: str | Path | None
    sample_rate: float
    sample_seconds: float
    samples: Any


class MethodKeywords(TypedDict, total=False):
    """The options of the methods on scores."""

    bins: int
    folds: int
    grid: Literal["fine", "medium", "coarse"] | ArrayLike
    lam: float | None
    mu: float | None
    of: Literal["top", "each"] | None
    ridge: float
    smoothing: float
    strength: float | None


class FitMethodKeywords(TypedDict, total=False):
    """What ``calibrate`` passes on to the methods and their choice."""

    bins: int | None
    candidates: Sequence[str] | None
    criterion: Literal["nll", "brier", "ece"]
    folds: int
    grid: Literal["fine", "medium", "coarse"] | ArrayLike
    keep_predictions: bool
    lam: float | None
    level: float
    mu: float | None
    of: Literal["top", "each"] | None
    ridge: float
    smoothing: float | None
    strength: float | None
    tolerance: float


class FitKeywords(ScoresKeywords, FitMethodKeywords, total=False):
    """Fields of ``FitOptions``, and the options of the methods on scores."""

    class_weight: Any
    cross_validate: bool
    prior: Any
    seed: int


class ArchiveFitKeywords(ArchiveKeywords, FitMethodKeywords, total=False):
    """Fields of ``ArchiveFitOptions``, and the options of the methods on scores."""

    prior: Any
    seed: int


class ModelFitKeywords(TypedDict, total=False):
    """Fields of ``ModelFitOptions``, and the options of all methods."""

    batch_size: int
    bins: int | None
    candidates: Sequence[str] | None
    checkpoints: str | Path | None
    class_names: Sequence[str]
    class_weight: Any
    clip: tuple[float, float] | None
    criterion: Literal["nll", "brier", "ece"]
    cross_validate: bool
    custom_ops: str | Path | None
    device: str | None
    folds: int
    gamma: Literal["paper"] | float | Sequence[float]
    grid: Literal["fine", "medium", "coarse"] | ArrayLike | None
    held_share: float
    input_range: tuple[float, float] | None
    input_shape: Any
    judge: Literal["folds", "calibration-ece"]
    keep_predictions: bool
    keep_rows: bool
    lam: float | None
    last_linear: str | None
    level: float
    mixed_precision: bool
    mu: float | None
    norm_power: Literal[1, 2]
    normalisation: tuple[ArrayLike, ArrayLike] | None
    of: Literal["top", "each"] | None
    output_name: str | None
    outputs: Any
    penalty: Literal["tenth"] | float | Sequence[float | Literal["tenth"]]
    pictures: Any
    prior: Any
    reading: Literal["expected", "paper", "no-mask"]
    resolution: Literal["auto"] | int | Sequence[int | None] | None
    ridge: float
    sample_weight: Any
    schedule: Literal["ours", "paper", "toolkit"]
    search: Literal["nll", "ece"]
    seed: int
    smoothing: float | None
    start: Literal["zero", "data", "random"]
    strength: float | None
    then: str | None
    tolerance: float
    train: Any
    weights: str | Path | None
