"""TorchServe archives: packing, re-packing, reading."""

from calib_serve.fuse.torchserve.archive import read_archive
from calib_serve.fuse.torchserve.contents import Batching, artifact_of, load_artifact
from calib_serve.fuse.torchserve.feedback import labelled_models, pack_feedback
from calib_serve.fuse.torchserve.mar import pack
from calib_serve.fuse.torchserve.recalibration import recalibrated, served_artifact
from calib_serve.fuse.torchserve.repacking import pack_around
from calib_serve.fuse.torchserve.shipped_files import shipped

__all__ = [
    "Batching",
    "artifact_of",
    "labelled_models",
    "load_artifact",
    "pack",
    "pack_around",
    "pack_feedback",
    "read_archive",
    "recalibrated",
    "served_artifact",
    "shipped",
]
