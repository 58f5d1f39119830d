"""TorchServe archives: packing, re-packing, reading."""

from calib_serve.fuse.torchserve.archive import read_archive, staged
from calib_serve.fuse.torchserve.contents import Batching, artifact_of, is_calibrated, load_artifact, shipped
from calib_serve.fuse.torchserve.feedback import labelled_models, pack_feedback
from calib_serve.fuse.torchserve.foreign import ForeignArchive, unpacked
from calib_serve.fuse.torchserve.forms import is_archive, stored_archives
from calib_serve.fuse.torchserve.mar import pack
from calib_serve.fuse.torchserve.names import check_names, remarks
from calib_serve.fuse.torchserve.recalibration import recalibrated, same_model, served_artifact
from calib_serve.fuse.torchserve.repacking import pack_around
from calib_serve.fuse.torchserve.seam_trial import SECONDS, Seam, find_seam, some_of

__all__ = [
    "SECONDS",
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
