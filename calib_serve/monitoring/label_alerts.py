"""Alerts of what the numbers rest on: predictions, labels and receipts."""

from __future__ import annotations

import json

from calib_serve.monitoring.alert import NAME, OWN_LABELS, SHARE, Alert, went_up
from calib_serve.monitoring.calibration_alerts import WATCHED
from calib_serve.monitoring.queries import SAME, SUM, recorded, watch_window

__all__ = ["LABEL_ALERTS"]

_REFUSED = went_up("calib_feedback_refused_total{reason!~'duplicate|not_wanted'}", "1h", drop=", reason")
_COUNTED = f"sum without (model, version) ({recorded('labels', '1h')})"
_COVERAGE = f"({watch_window('coverage', '24h')} and {WATCHED} or {recorded('coverage', '24h')})"
_PUBLISHED = f"{SUM[:-1]}, bin) (calib_predictions_total)"
"""Versions that are there: one that was taken away must not be missed."""
# The last hour at which the day before it had a label.
_LAST = json.dumps("max_over_time(timestamp(model_version:calib_labels:24h{%s} > 0)[7d:1h]) - 86400")
_LAST_LABEL = (
    f"{OWN_LABELS}{{{{ with query (printf {_LAST} $own) }}}}"
    " The last one came about {{ . | first | value | humanizeTimestamp }}.{{ end }}"
)


def _missing(window: str, text: str, unless: str = "") -> Alert:
    """``unless``, not ``== 0``: a label counter that was never created has no value to compare."""
    return Alert(
        "LabelsMissing",
        f"At least 1,000 predictions were served in {text}, and none got a label.",
        f"{recorded('served', window)} >= 1000 unless {recorded('labels', window)} > 0{unless}",
        f"{NAME}: no label arrived in {text}",
        _LAST_LABEL,
        lasts="1h",
        window=window,
    )


LABEL_ALERTS = (
    _missing("24h", "a day"),
    _missing("7d", "a week", f" unless {recorded('served', '24h')} >= 1000"),
    Alert(
        "LabelsFew",
        "Labels come, fewer than 200 in a day: numbers of that day can hardly tell an error from noise.",
        f"{recorded('labels', '24h')} > 0 and {recorded('labels', '24h')} < 200"
        f" and {recorded('served', '24h')} >= 1000",
        f"{NAME}: {{{{ $value | humanize }}}} labels in a day",
        severity="info",
        lasts="6h",
    ),
    Alert(
        "PredictionsFew",
        "A day has less than a tenth of the predictions of the week's days: callers left, or counting fails.",
        f"{recorded('served', '24h')} < 0.1 * {recorded('served', '7d')} / 7"
        f" and {recorded('served', '7d')} >= 1000 and {_PUBLISHED}",
        f"{NAME}: {{{{ $value | humanize }}}} predictions in a day, less than a tenth of before",
        lasts="1h",
    ),
    Alert(
        "LabelRateMoved",
        "If the outcome decides what is labelled, no number holds.",
        f"{SAME} (calib_label_rate_moved) == 1",
        f"{NAME}: labels come at another rate than the week before",
        lasts="1h",
    ),
    Alert(
        "LabelsImmature",
        "Labels come, and nearly none counts: how long they take is not known, or is long.",
        f"{watch_window('immature_share', '7d')} > 0.9 and {recorded('labels', '7d')} >= 100",
        f"{NAME}: {SHARE} of a week's predictions wait for their labels",
        severity="info",
        lasts="1d",
    ),
    Alert(
        "CoverageLow",
        "The numbers are true of the covered part alone.",
        f"{_COVERAGE} < 0.5 and {recorded('labels', '24h')} >= 100",
        f"{NAME}: labels speak of {SHARE} of the predictions",
        severity="info",
        lasts="6h",
    ),
    Alert(
        "LabelsRefused",
        "More than 5 % of labels, without duplicates and labels that were not asked for.",
        f"{_REFUSED} > 0.05 * (({_COUNTED} or {_REFUSED} * 0) + {_REFUSED}) and {_REFUSED} >= 20",
        "{{ $value | humanize }} labels were refused in the last hour",
        lasts="5m",
    ),
    Alert(
        "ReceiptsForged",
        "Keys that differ between hosts, or somebody who tries.",
        went_up("calib_feedback_refused_total{reason='bad_signature'}", "1h", drop=", reason") + " >= 5",
        "{{ $value | humanize }} receipts with a wrong signature in the last hour",
        severity="critical",
    ),
    Alert(
        "KeysUnknown",
        "A key that signs on one host and is lacking on another, or that was retired too early.",
        went_up("calib_feedback_refused_total{reason='unknown_key'}", "1h", drop=", reason") + " >= 5",
        "{{ $value | humanize }} labels of receipts with an unknown key were refused in the last hour",
    ),
)
