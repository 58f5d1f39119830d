"""TorchServe archives: packing, re-packing, reading."""

from calib_serve.torchserve.archive._archive import is_archive, read_archive, staged, stored_archives
from calib_serve.torchserve.archive._contents import (
    Batching,
    artifact_of,
    check_names,
    is_calibrated,
    load_artifact,
    remarks,
    shipped,
)
from calib_serve.torchserve.archive._packing import (
    labelled_models,
    pack,
    pack_feedback,
    recalibrated,
    same_model,
    served_artifact,
)
from calib_serve.torchserve.archive._repacking import (
    ForeignArchive,
    Seam,
    find_seam,
    pack_around,
    some_of,
    unpacked,
)

__all__ = [
    "Batching",
    "ForeignArchive",
    "Seam",
    "artifact_of",
    "check_names",
    "find_seam",
    "is_archive",
    "is_calibrated",
    "labelled_models",
    "load_artifact",
    "pack",
    "pack_around",
    "pack_feedback",
    "read_archive",
    "recalibrated",
    "remarks",
    "same_model",
    "served_artifact",
    "shipped",
    "some_of",
    "staged",
    "stored_archives",
    "unpacked",
]
