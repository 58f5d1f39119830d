"""Pictures as a model was trained on them: what is done to one, said once and done by one function.

``fit`` and the servers read pictures by the same ``read_picture``, so that a calibration holds for what is
served.
"""

from calib_serve.pictures.preprocessing import (
    MAX_PIXELS,
    Interpolation,
    Preprocessing,
    is_picture_shape,
    read_picture,
)
from calib_serve.pictures.transforms import preprocessing_of

__all__ = [
    "MAX_PIXELS", "Interpolation", "Preprocessing", "is_picture_shape", "preprocessing_of", "read_picture",
]  # fmt: skip
