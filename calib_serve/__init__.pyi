"""Calib Serve: calibrated confidence for deployed classifiers, proved in production."""

from calib_serve.artifact import Artifact as Artifact
from calib_serve.artifact import Preprocessing as Preprocessing
from calib_serve.core.bins import Bins as Bins
from calib_serve.core.errors import CalibServeError as CalibServeError
from calib_serve.fit import calibrate as calibrate
from calib_serve.fit import calibrate_model as calibrate_model
from calib_serve.fit import compare_methods as compare_methods
from calib_serve.fit import decide as decide
from calib_serve.fit import estimate_prior as estimate_prior
from calib_serve.fit import refit as refit
from calib_serve.fit import verdict as verdict
from calib_serve.fit import with_prior as with_prior
from calib_serve.fuse import calibrated as calibrated
from calib_serve.fuse import fuse_onnx as fuse_onnx
from calib_serve.fuse import fuse_torch as fuse_torch
from calib_serve.fuse import fuse_triton as fuse_triton
from calib_serve.integrations.collect.sending import send_label_file as send_label_file
from calib_serve.metrics import Verdict as Verdict
from calib_serve.metrics import evaluate as evaluate
from calib_serve.metrics import judge as judge
from calib_serve.models import load_data as load_data
from calib_serve.models import load_model as load_model
from calib_serve.monitor import Watch as Watch
from calib_serve.receipts import Keyring as Keyring
from calib_serve.receipts import Label as Label
from calib_serve.receipts import LabelPolicy as LabelPolicy
from calib_serve.receipts import Receipt as Receipt
from calib_serve.receipts import Reporter as Reporter
from calib_serve.report import ReliabilityDisplay as ReliabilityDisplay
from calib_serve.report import compare as compare
from calib_serve.report import write_report as write_report
from calib_serve.scores import Scores as Scores
from calib_serve.torchserve import Server as Server
from calib_serve.torchserve import load_artifact as load_artifact
from calib_serve.torchserve import pack as pack
from calib_serve.torchserve import pack_around as pack_around
from calib_serve.torchserve import refit_served as refit_served
from calib_serve.web import create_app as create_app
from calib_serve.web import serve_app as serve_app

__version__: str
