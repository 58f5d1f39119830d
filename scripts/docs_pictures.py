"""Make docs/images: concept figures, of scikit-learn's digits, and photographs of both pages.

    python scripts/docs_pictures.py

Needs the extras fit, report and watch, and chromium with chromedriver for the photographs. The README's
picture is of a ResNet-56 on CIFAR-10: its logits are in the folder that CALIB_SERVE_DATA names, and without
it that picture stays as it is.
"""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from sklearn.datasets import load_digits

from calib_serve import calibrate, evaluate
from calib_serve.core.bins import Bins
from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.fit.samples import Samples
from calib_serve.ledger import Ledger
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.papers import Curve, validation_size
from calib_serve.receipts import DAY, Keyring
from calib_serve.receipts.batch import ServedPrediction
from calib_serve.receipts.classes import Classes
from calib_serve.report import (
    STATIC,
    confidence_density,
    plot_density,
    plot_reliability,
    reliability,
    write_report,
)
from calib_serve.report.plot import PALETTE, draw_curves, drawing
from calib_serve.scores import softmax
from calib_serve.web.page import render_page

IMAGES = Path(__file__).parents[1] / "docs" / "images"
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Predictions = tuple[np.ndarray, np.ndarray]


def digits_network() -> tuple[Predictions, Predictions]:
    """Logits and labels of two unseen parts, from a network trained on 120 noisy digits."""
    torch.manual_seed(4)
    rng = np.random.default_rng(4)
    x, y = load_digits(return_X_y=True)
    x = np.clip(x / 16 + 0.2 * rng.standard_normal(x.shape), 0, 1).astype("float32")
    train, cal, test = np.split(rng.permutation(len(y)), [120, 700])
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    for _ in range(300):
        z = network(torch.from_numpy(x[train]))
        loss = torch.nn.functional.cross_entropy(z, torch.from_numpy(y[train]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.inference_mode():
        logits = network(torch.from_numpy(x)).double().numpy()
    return (logits[cal], y[cal]), (logits[test], y[test])


def save(figure: Figure, name: str) -> None:
    """As SVG on white, the same bytes every time."""
    import matplotlib as mpl  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(IMAGES / f"{name}.svg", facecolor="white", metadata={"Date": None})


def three_diagrams(test: Predictions, t: float) -> Figure:
    """The same network, too sharp, right, and too soft."""
    with drawing():
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        settings = (
            ("overconfident", 1.0, "before"),
            ("calibrated", t, "after"),
            ("underconfident", 2.6 * t, "wrong"),
        )
        for axes, (title, temperature, color) in zip(
            figure.subplots(1, 3, sharey=True), settings, strict=True
        ):
            data = reliability(softmax(test[0] / temperature), test[1], bins=10)
            plot_reliability(axes, data, color=PALETTE[color]).set_title(f"{title}: ECE {data.ece:.1%}")
            axes.label_outer()
    return figure


def before_and_after(cal: Predictions, test: Predictions) -> Figure:
    """What a fit on one half of CIFAR-10's test set does to the other half."""
    artifact = calibrate(*cal, outputs="logits")
    sides = (("as trained", softmax(test[0]), "before"), ("calibrated", artifact.probs(test[0]), "after"))
    with drawing():
        figure = Figure(figsize=(9.6, 4.9), layout="constrained")
        for diagram, (name, probs, color) in zip(figure.subplots(1, 2), sides, strict=True):
            data, found = reliability(probs, test[1]), evaluate(probs, test[1], replicates=0)
            title = f"{name}: ECE {data.ece:.1%}"
            plot_reliability(diagram, data, color=PALETTE[color]).set_title(title)
            said = f"says {found.mean_confidence:.1%}, is right {found.accuracy:.1%}"
            diagram.text(0.03, 0.93, said, fontsize=10.5, color=PALETTE[color])
        return figure


def noise_floor_by_size() -> Figure:
    """ECE of calibrated predictions, drawn 200 times at each size."""
    rng = np.random.default_rng(0)
    sizes = np.array([50, 100, 200, 500, 1000, 2000, 5000, 10_000])
    found = []
    for n in sizes:
        c = rng.beta(6, 1.5, (200, n))
        found.append([Bins.tally(row, rng.random(n) < row).ece() for row in c])
    low, middle, high = np.quantile(found, [0.05, 0.5, 0.95], axis=1)
    curve = Curve(
        "a perfectly calibrated model, 90 % of 200 draws", *(tuple(v) for v in (sizes, middle, low, high))
    )
    return draw_curves(
        [curve], title="The ECE that chance alone gives", x_label="samples", y_label="ECE", log_x=True
    )


def refinement(test: Predictions, t: float) -> Figure:
    """Right against wrong."""
    with drawing():
        figure = Figure(figsize=(7, 3.4), layout="constrained")
        plot_density(figure.subplots(), confidence_density(softmax(test[0] / t), test[1]))
    return figure


def watched(folder: Path) -> Path:
    """The watch page of ten days, of which the last four are overconfident, as one file."""
    now = time.time() - 10 * DAY
    clock = [now]
    rng = np.random.default_rng(3)
    models = {("digits", "2"): Watched(Classes(10, NAMES))}
    ledger = Ledger(folder / "labels.db", clock=lambda: clock[0])
    watch = Watch(Keyring("k", {"k": bytes(32)}), ledger, models=models, maturity=0.0)
    for hour in range(240):
        clock[0] = now + 3600 * hour
        c, named = 1 - 0.75 * rng.beta(1, 4, 40), rng.integers(0, 10, 40)
        right = rng.random(40) < c - 0.12 * (hour > 144)
        served = [
            ServedPrediction("digits", "2", int(k), float(p), segment=("scanner", "phone")[int(k) % 2])
            for k, p in zip(named, c, strict=True)
        ]
        given = zip(watch.predictions(served), named, right, strict=True)
        watch.labels([{"receipt": r, "label": int(k if y else (k + 1) % 10)} for r, k, y in given])
        watch.feed.tick()
    style = (STATIC / "look.css").read_text()
    page = render_page(watch, window="7d").replace(
        '<link rel="stylesheet" href="static/look.css">', f"<style>{style}</style>"
    )
    watch.close()
    path = folder / "page.html"
    path.write_text(page)
    return path


def photograph(shots: Sequence[tuple[Path, str, str, int]]) -> None:
    """Each (page, mode, name, height in pixels)."""
    options = Options()
    options.binary_location = str(shutil.which("chromium"))
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        for page, mode, name, high in shots:
            media = [{"name": "prefers-color-scheme", "value": mode}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
            size = {"width": 1080, "height": high, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.get(page.as_uri())
            shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
            (IMAGES / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
    finally:
        driver.quit()


def main() -> None:
    """Everything in docs/images."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    if folder := os.environ.get("CALIB_SERVE_DATA"):
        real = np.load(Path(folder) / "logits" / "akamaster_resnet56_c10.npz")
        parts = [(real[f"{split}_logits"], real[f"{split}_labels"]) for split in ("cal", "test")]
        save(before_and_after(*parts), "before-after")
    cal, test = digits_network()
    artifact = fit_temperature(Samples.of(*cal))
    t = float(artifact.fit["temperature"])
    save(three_diagrams(test, t), "reliability")
    save(noise_floor_by_size(), "noise-floor")
    save(refinement(test, t), "refinement")
    study = validation_size(cal, test, methods=["temperature", "histogram-mass", "isotonic"], repeats=20)
    save(
        draw_curves(
            study.curves, title=study.title, x_label=study.x_label, y_label=study.y_label, log_x=True
        ),
        "size",
    )
    with tempfile.TemporaryDirectory() as folder:
        report = write_report(
            Path(folder) / "report.html",
            title="Handwritten digits",
            before=(softmax(test[0]), test[1]),
            after=(artifact.probs(test[0]), test[1]),
            artifact=artifact,
            class_names=NAMES,
        )
        page = watched(Path(folder))
        photograph(
            [
                (report, "light", "report-light", 1240),
                (report, "dark", "report-dark", 1240),
                (page, "light", "watch-page", 1640),
                (page, "light", "watch-page-top", 920),
            ]
        )


if __name__ == "__main__":
    main()
