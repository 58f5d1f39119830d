"""A classifier of Hugging Face transformers, by the folder that ``save_pretrained`` wrote."""

from calib_serve.model.hugging_face.data import data_of
from calib_serve.model.hugging_face.folder import is_folder
from calib_serve.model.hugging_face.load import load_folder

__all__ = ["data_of", "is_folder", "load_folder"]
