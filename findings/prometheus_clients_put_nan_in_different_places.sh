#!/usr/bin/env bash
# prometheus-client 0.26.0: a histogram that observes NaN counts it in no bucket, not even +Inf, and not in _count, but
# adds it to _sum, which is NaN from then on, as is every mean made of it. opentelemetry-sdk 1.45.2 leaves NaN out of all
# and logs a warning; a Summary of prometheus-client counts it.
# Guess before: NaN is counted under +Inf and in _count, as Go's client does.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check prometheus-client==0.26.0 opentelemetry-sdk==1.45.2
"$folder/venv/bin/python" - 2>/dev/null <<'PY'
from importlib.metadata import version

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from prometheus_client import CollectorRegistry, Histogram, Summary

CONFIDENCES, EDGES = (0.95, 0.3, float("nan"), 0.4), (0.5, 0.9, 1.0)
registry = CollectorRegistry()
histogram = Histogram("confidence", "of a prediction", buckets=EDGES, registry=registry)
summary = Summary("all", "of a prediction", registry=registry)
reader = InMemoryMetricReader()
view = View(instrument_name="confidence", aggregation=ExplicitBucketHistogramAggregation(EDGES))
other = MeterProvider([reader], views=[view]).get_meter("m").create_histogram("confidence")
for one in CONFIDENCES:
    for observe in (histogram.observe, summary.observe, other.record):
        observe(one)
value = registry.get_sample_value
buckets = [value("confidence_bucket", {"le": le}) for le in ("0.5", "0.9", "1.0", "+Inf")]
count, total = value("confidence_count"), value("confidence_sum")
point = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0]
print(f"prometheus-client {version('prometheus-client')}: of 4 with one NaN, buckets {buckets}, count {count}, sum {total};"
      f" a summary counts {value('all_count')}; opentelemetry-sdk {version('opentelemetry-sdk')}: buckets "
      f"{list(point.bucket_counts)}, count {point.count}, sum {point.sum:.2f}")
assert buckets == [2, 2, 3, 3] and count == 3 and total != total and value("all_count") == 4
assert list(point.bucket_counts) == [2, 0, 1, 0] and point.count == 3 and abs(point.sum - 1.65) < 1e-9
PY
