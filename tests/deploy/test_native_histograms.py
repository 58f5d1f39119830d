"""Why confidences are not published as native histograms; it fails when the library has learned to."""

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

samples = pytest.importorskip("prometheus_client.samples")
if not hasattr(samples, "NativeHistogram"):
    pytest.skip("this prometheus-client knows no native histograms", allow_module_level=True)

PROTOBUF = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5"
)
"""What a Prometheus that scrapes native histograms asks for, the first one rather than the others."""


class Confidences:
    def collect(self):
        family = Metric("calib_confidence", "Confidences.", "histogram")
        spans = [samples.BucketSpan(-2, 2)]
        seen = samples.NativeHistogram(4, 3.2, 3, 1e-9, 0, pos_spans=spans, pos_deltas=[2, 0])
        family.add_sample("calib_confidence", {"model": "m"}, None, native_histogram=seen)
        yield family


@pytest.fixture
def registry():
    made = CollectorRegistry()
    made.register(Confidences())
    return made


def test_a_prometheus_that_asks_for_native_histograms_gets_a_text_without_them(registry):
    encode, kind = choose_encoder(PROTOBUF)
    assert "openmetrics-text; version=1.0.0" in kind
    assert "schema" not in encode(registry).decode()


def test_the_plain_format_cannot_be_written_at_all(registry):
    encode, _ = choose_encoder("text/plain;version=0.0.4")
    with pytest.raises(TypeError):
        encode(registry)


def test_openmetrics_2_has_them(registry):
    encode, _ = choose_encoder("application/openmetrics-text;version=2.0.0")
    assert "schema:3" in encode(registry).decode()
