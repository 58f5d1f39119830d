"""The record of accepted labels: each is counted once, whoever sends it, however often."""

from calib_serve.ledger.database import check_address as check_address
from calib_serve.ledger.entries import SPANS as SPANS
from calib_serve.ledger.entries import Entry as Entry
from calib_serve.ledger.entries import Fate as Fate
from calib_serve.ledger.entries import Held as Held
from calib_serve.ledger.entries import LabelRecord as LabelRecord
from calib_serve.ledger.entries import Progress as Progress
from calib_serve.ledger.entries import Published as Published
from calib_serve.ledger.entries import Shadowed as Shadowed
from calib_serve.ledger.entries import State as State
from calib_serve.ledger.entries import WindowSums as WindowSums
from calib_serve.ledger.export import export_ledger as export_ledger
from calib_serve.ledger.intake import Intake as Intake
from calib_serve.ledger.ledger import Ledger as Ledger
from calib_serve.ledger.ledger import Revoked as Revoked
from calib_serve.ledger.prediction_ids import Binding as Binding
from calib_serve.ledger.prediction_ids import PredictionIds as PredictionIds
from calib_serve.ledger.recovery import note_recovery as note_recovery
from calib_serve.ledger.recovery import read_kept as read_kept
from calib_serve.ledger.recovery import recent_recovery as recent_recovery
from calib_serve.ledger.schema import GIVEN as GIVEN
from calib_serve.ledger.schema import INCIDENT as INCIDENT
from calib_serve.ledger.schema import PROGRAM as PROGRAM
from calib_serve.ledger.schema import VERSION as VERSION
