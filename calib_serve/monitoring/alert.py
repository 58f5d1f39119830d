"""One alert, as YAML, and the templates that its texts are made of."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from calib_serve.monitoring.queries import REPLICA, SUM

__all__ = ["NAME", "OWN_LABELS", "SHARE", "SINCE", "Alert", "bins_off", "gap_told", "went_up"]

NAME = "{{ $labels.model }} {{ $labels.version }}"
SHARE = "{{ $value | humanizePercentage }}"

OWN_LABELS = (
    '{{ $own := "" }}{{ range $name, $is := $labels }}{{ if ne $name "__name__" }}'
    '{{ $own = printf "%s%s=%q," $own $name $is }}{{ end }}{{ end }}'
)
"""Puts the alert's labels into ``$own``, a selector: its texts ask for more about the same version there."""
_GAPS = "(model_version_bin:calib_confidence:24h{%s} - model_version_bin:calib_accuracy:24h{%s})"


def bins_off(tolerance: float) -> str:
    """Which bins are off by more than the tolerance: those of the incident, else those of the last day."""
    found = f"sort_desc(max without ({REPLICA}) (calib_incident_bin_gap{{%s}}))"
    other = f"sort_desc({_GAPS} > {tolerance} or {_GAPS} < -{tolerance})"
    each = "{{ range $bins }} {{ .Labels.bin }} ({{ .Value | humanizePercentage }}){{ end }}"
    return (
        f"{OWN_LABELS}{{{{ $bins := query (printf {json.dumps(found)} $own) }}}}{{{{ if not $bins }}}}"
        f"{{{{ $bins = query (printf {json.dumps(other)} $own $own $own $own) }}}}{{{{ end }}}}"
        f"{{{{ if $bins }}}} By bin, confidence less accuracy:{each}.{{{{ end }}}}"
    )


def gap_told(expression: str) -> str:
    """Which way confidence is off and by how much; ``expression``: the gap, %s where the labels belong."""
    asked = f"printf {json.dumps(expression)}{' $own' * expression.count('%s')}"
    return (
        f"{OWN_LABELS}{{{{ with query ({asked}) }}}}{{{{ $gap := . | first | value }}}}"
        " Over all, {{ if gt $gap 0.0 }}overconfident{{ else }}underconfident{{ end }},"
        " confidence less accuracy is {{ $gap | humanizePercentage }}.{{ end }}"
    )


_ONSET = f"max without ({REPLICA}) (calib_incident_onset_timestamp_seconds{{%s}})"
SINCE = (
    f"{OWN_LABELS}{{{{ with query (printf {json.dumps(_ONSET)} $own) }}}}"
    " It began about {{ . | first | value | humanizeTimestamp }}.{{ end }}"
)
"""When the drift began, where that is known."""


@dataclass(frozen=True)
class Alert:
    """One rule of alerts.yml. ``text`` says more than the ``summary`` does, where there is more to say."""

    name: str
    says: str
    expr: str
    summary: str
    text: str = ""
    severity: str = "warning"
    lasts: str = ""
    window: str = ""

    @property
    def windows(self) -> set[str]:
        """Those of the recorded series that it reads."""
        return set(re.findall(r"model_version(?:_bin)?:calib_\w+:(\w+)", self.expr))

    def yaml(self, runbooks: str) -> str:
        """The rule."""
        labels = f"severity: {self.severity}" + (f', window: "{self.window}"' if self.window else "")
        runbook = f"{runbooks}#{self.name.lower()}"
        described = f"{self.says}{self.text} Runbook: {runbook}"
        return (
            f"      - alert: {self.name}\n        expr: >-\n          {self.expr}\n"
            + (f"        for: {self.lasts}\n" if self.lasts else "")
            + f"        labels: {{{labels}}}\n        annotations:\n"
            f"          summary: {json.dumps(self.summary)}\n"
            f"          description: {json.dumps(described)}\n"
            f"          runbook_url: {runbook}\n"
        )


def went_up(counter: str, over: str, *, drop: str = "") -> str:
    """By how much a counter went up, over replicas and the labels to ``drop``."""
    return f"{SUM[:-1]}{drop}) (increase({counter}[{over}]))"
