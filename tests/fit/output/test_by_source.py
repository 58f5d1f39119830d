"""A calibration by source: between one for all and one for each, and never the wrong one in silence."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import calib_serve

from calib_serve.artifact import Artifact, SourceMaps, promises
from calib_serve.core.errors import ArtifactError, CalibServeError, FitError, InputError, ShapeError
from calib_serve.fit import calibrate, decide, refit, with_prior
from calib_serve.fit.output.by_source import BY_SOURCE, between_sources, shrunk
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.scores import Scores, sigmoid, softmax

SITES = ("east", "north", "south", "west")


def samples(
    spread: float = 0.6, n: int = 400, classes: int = 3, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels and sites, each of a temperature and, of two classes, an offset of its own."""
    rng = np.random.default_rng(seed)
    z, site = 3 * rng.normal(size=(n, classes)), np.array(SITES)[rng.integers(0, len(SITES), n)]
    own = dict(zip(SITES, spread * rng.normal(size=(len(SITES), 2)), strict=True))
    true = z / np.exp(0.4 + np.array([own[one][0] for one in site]))[:, None]
    if classes == 2:
        true[:, 1] += [own[one][1] for one in site]
    y = (softmax(true).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return z, y, site


def fitted(method: str = "temperature", classes: int = 3, **keywords: Any) -> Artifact:
    z, y, site = samples(classes=classes)
    return calibrate(z, y, method, outputs="logits", by={"site": site}, cross_validate=False, **keywords)


@pytest.mark.parametrize("method", BY_SOURCE)
def test_sources_that_do_not_differ_have_the_map_of_one_fit_to_all(method: str) -> None:
    # The same samples at every site: nothing is between them.
    z, y, _ = samples(classes=2, n=100)
    z, y, site = np.tile(z, (4, 1)), np.tile(y, 4), np.repeat(SITES, 100)
    artifact = calibrate(z, y, method, outputs="logits", by={"site": site}, cross_validate=False)
    one = fit_by_name(method, z, y)
    assert artifact.of_logits(z, site) == pytest.approx(one.of_logits(z), abs=1e-6)
    assert artifact.at("elsewhere").of_logits(z) == pytest.approx(one.of_logits(z), abs=1e-6)


@pytest.mark.parametrize("method", BY_SOURCE)
def test_sources_of_many_samples_have_their_own_fit(method: str) -> None:
    z, y, site = samples(classes=2, n=40_000)
    artifact = calibrate(z, y, method, outputs="logits", by={"site": site}, cross_validate=False)
    for one in SITES:
        own = fit_by_name(method, z[site == one], y[site == one])
        assert artifact.at(one).of_logits(z) == pytest.approx(own.of_logits(z), abs=0.02)
        for name in BY_SOURCE[method]:
            assert artifact.fit["sources"][one][name]["weight"] > 0.9


def test_the_shrunk_parameter_is_the_weighted_mean_of_the_own_and_the_common_one() -> None:
    artifact = fitted()
    mean = artifact.fit["log_temperature"]["mean"]
    for one, facts in artifact.fit["sources"].items():
        of = facts["log_temperature"]
        assert of["shrunk"] == pytest.approx(mean + of["weight"] * (of["own"] - mean), abs=1e-12)
        assert artifact.at(one).temperature == pytest.approx(np.exp(of["shrunk"]))
        between = artifact.fit["log_temperature"]["between"] ** 2
        assert of["weight"] == pytest.approx(between / (between + of["standard_error"] ** 2), abs=1e-12)
    assert artifact.at("elsewhere").temperature == pytest.approx(np.exp(mean))


def test_facts_are_of_named_parameters_around_the_mean_score() -> None:
    z, *_ = samples(classes=2)
    for method, keys in (("intercept", {"intercept"}), ("logistic", {"log_slope", "intercept"})):
        fit = fitted(method, classes=2).fit
        assert fit["centre"] == pytest.approx((z[:, 1] - z[:, 0]).mean() if len(keys) == 2 else 0)
        assert keys <= {*fit.facts}
        assert {*fit["sources"]["east"]} == {"n", *keys}


@pytest.mark.parametrize("score", [10, 40, 100, 1000])
def test_a_source_of_one_score_and_an_outlier_that_is_wrong_has_a_flat_map_or_is_refused(
    score: float,
) -> None:
    rng = np.random.default_rng(0)
    z, site = 3 * rng.normal(size=400), np.array(SITES)[rng.integers(0, 4, 400)]
    y = (sigmoid(z / 2 - 1) > rng.random(400)).astype(int)
    z, y, site = np.r_[z, [4.0] * 30, score], np.r_[y, [1] * 30, 0], np.r_[site, ["odd"] * 31]
    how: dict[str, Any] = {"outputs": "logit", "by": {"site": site}, "cross_validate": False}
    if score == 10:
        with pytest.raises(FitError, match="did not converge"):
            calibrate(z, y, "logistic", **how)
        return
    p = calibrate(z, y, "logistic", **how).at("odd").probs([4.0, score])
    assert p[0, 1] == pytest.approx(30 / 31, abs=0.1)


def test_the_variance_between_sources_solves_its_equation_or_is_0() -> None:
    x, v = np.array([0.1, 0.9, -0.4, 0.3]), np.array([0.01, 0.02, 0.05, 0.01])
    between = between_sources(x, v)
    w = 1 / (v + between)
    assert w @ (x - w @ x / w.sum()) ** 2 == pytest.approx(3, abs=1e-9)
    assert between_sources(x / 100, v) == between_sources(x[:1], v[:1]) == 0
    pooled, to, weights = shrunk(x[:, None], v[:, None, None])
    assert (pooled.between[0], pooled.mean[0]) == (between, pytest.approx(w @ x / w.sum()))
    assert to[:, 0] == pytest.approx(pooled.mean + weights[:, 0, 0] * (x - pooled.mean))


def test_a_source_that_is_all_right_has_a_temperature() -> None:
    z, y, site = samples()
    new = np.tile([3.0, 0.0, 0.0], (15, 1))
    z, y, site = np.concatenate([z, new]), np.append(y, [0] * 15), np.append(site, ["right"] * 15)
    artifact = calibrate(z, y, "temperature", outputs="logits", by={"site": site}, cross_validate=False)
    t = artifact.at("right").temperature
    assert t is not None
    assert 0.1 < t < artifact.at("elsewhere").temperature


def test_copies_in_groups_say_no_more_than_one_of_each() -> None:
    z, y, site = samples(n=300)
    apart = calibrate(z, y, "temperature", outputs="logits", by={"site": site}, cross_validate=False)
    rows = np.repeat(np.arange(300), 3)
    more = {"by": {"site": site[rows]}, "groups": rows, "outputs": "logits", "cross_validate": False}
    copied = calibrate(z[rows], y[rows], "temperature", **more)
    assert copied.fit["design_effect"] == pytest.approx(3, rel=0.2)
    for one in SITES:
        assert copied.at(one).temperature == pytest.approx(apart.at(one).temperature, rel=0.03)


def test_a_source_of_few_samples_has_the_common_map_and_is_named() -> None:
    z, y, site = samples()
    site[:7] = "tiny"
    artifact = calibrate(z, y, "temperature", outputs="logits", by={"site": site}, cross_validate=False)
    assert artifact.fit["too_few"] == {"tiny": 7}
    assert "tiny" in artifact.fit.remarks[-1]
    assert artifact.at("tiny").temperature == artifact.at("elsewhere").temperature
    few = np.arange(len(y)).astype(str)
    with pytest.raises(FitError, match="no value of site has 10 samples"):
        calibrate(z, y, "temperature", outputs="logits", by={"site": few})


def test_sources_that_are_forgotten_are_refused_and_unknown_ones_are_told() -> None:
    artifact, (z, _, site) = fitted(), samples()
    for call in (artifact.of_logits, artifact.probs):
        with pytest.raises(InputError, match="a map for each site, and no sources are given"):
            call(z)
    with pytest.raises(InputError, match="a map for each site"):
        artifact.logit_maps  # noqa: B018 - what knows of no sources meets the refusal
    with pytest.warns(RuntimeWarning, match="did not know: 'Mars'"):
        strange = artifact.of_logits(z, ["Mars"] * len(z))
    common = artifact.of_logits(z, "")
    assert np.array_equal(strange, common)
    assert np.array_equal(common, artifact.at("").of_logits(z))
    probs, unknown = artifact.of_segments(z, np.where(site == "west", "Mars", site))
    assert unknown == (site == "west").sum()
    assert np.array_equal(probs[site == "east"], artifact.of_logits(z, site)[site == "east"])
    with pytest.raises(ShapeError, match="one source for each of"):
        artifact.of_logits(z, site[:3])
    with pytest.raises(InputError, match="one for all: leave sources= out"):
        artifact.at("east").of_logits(z, site)
    with pytest.raises(InputError, match="a shadow has one for all"):
        artifact.check_beside(artifact.at("east"))


def test_methods_that_cannot_are_refused_with_those_that_can() -> None:
    z, y, site = samples(classes=2)
    for method in ("platt", "isotonic", "vector", "temperature-ece"):
        with pytest.raises(InputError, match=r"by site: choose temperature, intercept, logistic"):
            calibrate(z, y, method, outputs="logits", by={"site": site})
    with pytest.raises(InputError, match="class shares"):
        calibrate(z, y, "logistic", outputs="logits", by={"site": site}, prior=[0.5, 0.5])
    of_labels: dict[str, Any] = {"outputs": "label_logits", "by": {"site": site}}
    with pytest.raises(InputError, match="leave by"):
        calibrate(z, np.stack([y, 1 - y], axis=1), "temperature", **of_labels)
    assert calibrate(z, y, outputs="logits", by={"site": site}).method in BY_SOURCE


def test_a_saved_artifact_is_the_same_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    artifact = fitted("logistic", classes=2)
    artifact.save(tmp_path / "artifact")
    again, (z, _, site) = Artifact.load(tmp_path / "artifact"), samples(classes=2)
    assert again.fingerprint == artifact.fingerprint
    assert np.array_equal(again.of_logits(z, site), artifact.of_logits(z, site))
    manifest = tmp_path / "artifact" / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace("- east\n", "- Mars\n"))
    with pytest.raises(ArtifactError):
        Artifact.load(tmp_path / "artifact")


@pytest.mark.parametrize(
    ("by", "names", "weight", "bias"),
    [
        ("site", ("a", "a"), np.ones(3), None),
        ("site", ("a", ""), np.ones(3), None),
        ("site", ("a", 7), np.ones(3), None),
        ("site", ("a",), np.ones(3), None),
        ("site", ("a",), np.array([1.0, 0.0]), None),
        ("site", ("a",), np.ones(2), np.zeros((3, 2))),
    ],
)
def test_maps_that_cannot_be_are_refused(by: str, names: tuple[str, ...], weight: Any, bias: Any) -> None:
    with pytest.raises(CalibServeError):
        SourceMaps(by, names, weight, bias)


def test_a_masked_class_stays_masked_at_every_source() -> None:
    artifact = fitted("logistic", classes=2)
    probs = artifact.of_logits([[0.0, -1e9]] * 4, list(SITES))
    assert probs.tolist() == [[1.0, 0.0]] * 4


def test_the_command_line_fits_and_evaluates_by_a_column(tmp_path: Path) -> None:
    z, y, site = samples()
    path, strange = tmp_path / "scores.npz", tmp_path / "strange.npz"
    np.savez(path, logits=z, labels=y, site=site)
    np.savez(strange, logits=z, labels=y, site=np.where(site == "west", "Mars", site))
    out = tmp_path / "artifact"
    done = calib_serve("fit", path, "--by", "site", "--method", "temperature", "-o", out)
    assert done.exit_code == 0, done.output
    artifact = Artifact.load(out)
    assert artifact.source_maps is not None
    assert artifact.source_maps.sources == SITES
    (step,) = json.loads(calib_serve("inspect", out, "--json").stdout)["steps"]
    assert step == {"kind": "source_maps", "by": "site", "sources": list(SITES), "weight": [5]}
    found = json.loads(calib_serve("evaluate", path, "--artifact", out, "--json").stdout)
    probs = artifact.of_logits(z, site)
    assert found["nll"]["value"] == pytest.approx(-np.log(probs[np.arange(len(y)), y]).mean())
    with pytest.warns(RuntimeWarning, match="Mars"):
        told = calib_serve("evaluate", strange, "--artifact", out, "--json")
    assert told.exit_code == 0
    done = calib_serve("evaluate", path, "--columns", "nothing", "--artifact", out)
    assert done.exit_code != 0


def test_decisions_are_found_on_the_probabilities_of_each_rows_source(tmp_path: Path) -> None:
    artifact = fitted()
    z, y, site = samples(n=600, seed=1)
    costs = {"0": {"go": 0, "ask": 0.3}, "1": {"go": 1, "ask": 0.3}, "2": {"go": 2, "ask": 0.3}}
    asked: dict[str, Any] = {"cost": costs, "coverage": 0.9, "known_refused": 0.1}
    found = decide(artifact, Scores.of(z, y, outputs="logits", by={"site": site}), **asked)
    frame = {**{f"logit_{k}": z[:, k] for k in range(3)}, "label": y, "site": site}
    assert decide(artifact, frame, **asked).fingerprint == found.fingerprint
    scale = np.array([1 / artifact.at(one).temperature for one in site])  # type: ignore[operator]
    p = softmax(scale[:, None] * z)
    assert found.choice is not None
    assert found.sets is not None
    assert found.abstain is not None
    chosen = (p @ np.array([[0, 0.3], [1, 0.3], [2, 0.3]])).argmin(axis=1)
    assert found.fit.decisions.choice is not None
    paid = np.where(chosen == 1, 0.3, y)
    assert found.fit.decisions.choice.measured == pytest.approx(paid.mean())
    score = np.where(p.argmax(axis=1) == y, 0, 1 - p[np.arange(600), y])
    assert found.sets.threshold == pytest.approx(np.sort(score)[540], abs=1e-6)  # the 541st of 600
    assert found.abstain.threshold == pytest.approx(np.sort(p.max(axis=1))[59], abs=1e-5)
    assert Artifact.load(found.save(tmp_path / "decided")).fingerprint == found.fingerprint
    with pytest.raises(InputError, match="no sources are given"):
        decide(artifact, z, y, coverage=0.9)
    with pytest.warns(RuntimeWarning, match="Mars"):
        decide(artifact, Scores.of(z, y, outputs="logits", by={"site": ["Mars"] * 600}), coverage=0.9)
    with pytest.raises(InputError, match="by town, and maps are by site"):
        decide(artifact, Scores.of(z, y, outputs="logits", by={"town": site}), coverage=0.9)


def test_a_refit_of_one_map_for_all_is_refused() -> None:
    z, y, site = samples()
    with pytest.raises(InputError, match="calib-serve fit --by site"):
        refit(fitted(), Scores.of(z, y, outputs="logits", by={"site": site}))


def test_places_have_the_source_of_their_sample() -> None:
    artifact, z = fitted(), samples(n=8)[0].reshape(4, 2, 3)
    names = ["west", "east", "elsewhere", "north"]
    with pytest.warns(RuntimeWarning, match="elsewhere"):
        found = artifact.probs(z, outputs="logits", class_axis=-1, sources=names)
    for row, name in enumerate(names):
        np.testing.assert_array_equal(found[row], artifact.at(name).of_logits(z[row]))
    at = {"outputs": "logits", "class_axis": 1, "sources": "east"}
    east = artifact.at("east").of_logits(z.reshape(8, 3)).argmax(axis=1).reshape(4, 2)
    np.testing.assert_array_equal(artifact.probs(np.moveaxis(z, -1, 1), **at).argmax(axis=1), east)


def test_the_map_of_one_source_has_no_promise_or_measurement_of_all() -> None:
    z, y, site = samples(n=600, seed=1)
    costs = {str(k): {"go": k, "ask": 0.3} for k in range(3)}
    asked: dict[str, Any] = {"cost": costs, "coverage": 0.9, "known_refused": 0.1}
    every = decide(fitted(), Scores.of(z, y, outputs="logits", by={"site": site}), **asked)
    one = every.at("north")
    assert promises(every)
    assert promises(one) == []
    assert (one.sets, one.abstain, one.choice, one.reference, one.after) == (None, None, None, None, {})
    assert one.reference_classes == ()
    with pytest.raises(InputError, match="does not say under which class shares"):
        with_prior(one, [0.5, 0.25, 0.25])
    # Found anew on samples of that source, it holds for it.
    north = site == "north"
    own = decide(one, z[north], y[north], cost=costs)
    assert own.fit.decisions.choice is not None
    assert own.fit.decisions.choice.samples == north.sum()
    with pytest.raises(InputError, match="the calibration was fitted on"):
        decide(fitted().at("north"), *samples()[:2], coverage=0.9)


def test_sources_of_a_series_go_by_its_index() -> None:
    pandas = pytest.importorskip("pandas")
    artifact, (z, y, site) = fitted(), samples()
    frame = pandas.DataFrame({f"logit_{k}": z[:, k] for k in range(3)})
    turned = pandas.Series(site)[::-1]
    assert Scores.of(frame, y, outputs="logits", by={"site": turned}).sources.tolist() == site.tolist()  # type: ignore[union-attr]
    np.testing.assert_array_equal(artifact.probs(frame, sources=turned), artifact.of_logits(z, site))
    with pytest.raises(InputError, match="index of the source"):
        artifact.probs(frame, sources=turned.set_axis(turned.index + 1))


@pytest.mark.parametrize("wrong", [[0.5] * 400, *(["a"] * 399 + [one] for one in ("", None, math.nan))])
def test_sources_that_say_nothing_are_refused(wrong: list[Any]) -> None:
    z, y, _ = samples()
    with pytest.raises(InputError, match="says the source of each row"):
        Scores.of(z, y, outputs="logits", by={"site": wrong})
    with pytest.raises(ShapeError, match="one source for each row"):
        Scores.of(z, y, outputs="logits", by={"site": wrong[:3]})
    with pytest.raises(InputError, match="a column, 'site', and the scores are an array"):
        Scores.of(z, y, outputs="logits", by="site")


def test_a_file_without_the_column_is_refused(tmp_path: Path) -> None:
    z, y, _ = samples()
    fitted().save(tmp_path / "artifact")
    np.savez(tmp_path / "scores.npz", logits=z, labels=y)
    done = calib_serve("evaluate", tmp_path / "scores.npz", "--artifact", tmp_path / "artifact")
    assert done.exit_code != 0
    assert re.search("no column 'site' for the source", done.output)


def test_a_frame_without_the_source_of_a_row_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    z, y, site = samples()
    frame = pandas.DataFrame({f"logit_{k}": z[:, k] for k in range(3)}).assign(label=y)
    for dtype in (None, object, "category", "string"):
        gone = pandas.Series([None, *site[1:]], dtype=dtype)
        with pytest.raises(InputError, match="row 1 has"):
            Scores.of(frame.assign(site=gone), outputs="logits", by="site")
