"""The demo's eight steps, printed as they happen."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import digits
import numpy as np
import offline
import online
from digits import Split
from offline import CalibrationChoice, Deployed, Fused
from online import Answers, Counters, predict, refusals, sampled, send_labels
from rich.box import SIMPLE
from rich.table import Table

from calib_serve.core.bins import Bins
from calib_serve.core.errors import CalibServeError, ServerError
from calib_serve.fit import refit
from calib_serve.report import write_report
from calib_serve.torchserve import Ports, Server

if TYPE_CHECKING:
    from rich.console import Console

_METRICS = {
    "accuracy": "accuracy %",
    "ece": "ECE %",
    "adaptive_ece": "adaptive ECE %",
    "classwise_ece": "classwise ECE %",
    "nll": "NLL",
    "brier": "Brier",
    "refinement_auroc": "refinement AUROC %",
}
_ALARM_BATCH = 20
_MOST_SHIFTED = 600


class Story:
    """Prints numbered steps; a step that fails says which, why, and what to do."""

    def __init__(self, console: Console, out: Path) -> None:
        self.say, self.out = console.print, out
        self._rule, self._number = console.rule, 0

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Time one step of eight, and print its heading."""
        self._number += 1
        name = f"{self._number}/8 {title}"
        self._rule(f"[bold]{name}", align="left")
        began = time.perf_counter()
        try:
            yield
        except CalibServeError as error:
            raise type(error)(f"step {name} failed: {error}") if _plain(error) else error from error
        except Exception as error:
            log = self.out / "demo-error.txt"
            log.write_text(traceback.format_exc(), "utf-8")
            raise CalibServeError(
                f"step {name} failed with {type(error).__name__}: {error}; this should not happen: "
                f"please report it with {log}"
            ) from error
        self.say(f"[dim]{time.perf_counter() - began:.1f} s[/dim]")


def _plain(error: CalibServeError) -> bool:
    return type(error).__init__ is CalibServeError.__init__


def tell(story: Story, store: Path, *, keep: bool, seed: int) -> None:
    """Run and print all eight steps; archives go into ``store``; ``keep`` leaves the server up."""
    out, say = story.out, story.say
    out.mkdir(parents=True, exist_ok=True)
    with story.step("train a small network on 100 digits, and export it"):
        deployed = offline.deploy(out, seed=seed)
        say(f"torch.export {deployed.model}, ONNX {deployed.onnx}")
    with story.step("fit three calibrations on 500 other digits"):
        calibrated = offline.choose_calibration(deployed, seed=seed)
        _show_table(story, deployed, calibrated)
    with story.step("save the artifact, and fuse it into the ONNX graph"):
        fused = offline.fuse(deployed, calibrated, out)
        _show_fused(story, fused)
    with ExitStack() as running:
        with story.step("pack the archives, start TorchServe, two workers, tokens on"):
            online.fresh_folder(out / "server")
            server = running.enter_context(_packed(story, deployed, fused.artifact, store, version="1.0"))
            say(f"predictions {server.inference}, metrics {server.metrics}/metrics, tokens {server.key_file}")
        with story.step("predict over HTTP, send labels home, try to cheat"):
            answers = _predict_and_label(story, server, deployed)
        with story.step("compare the live ECE with the offline ECE"):
            _compare(story, server, answers)
        with story.step("shift the inputs until the drift alarm fires, and refit on their labels"):
            _shift(story, server, deployed, answers, seed=seed)
            refitted = _refitted(story, server, calibrated, predictions=len(answers.replies) + _MOST_SHIFTED)
            server.stop()
            server = running.enter_context(_packed(story, deployed, refitted, store, version="1.1"))
            _recovered(story, server, deployed, seed=seed)
        with story.step("write the report"):
            _report(story, deployed, calibrated)
        if keep:
            _wait(story, server, online.MODEL, online.FEEDBACK)
    say(f"\nAll eight steps done; everything is in {out}/. Next: docs/quickstart.md, with your own model.")


def _show_table(story: Story, deployed: Deployed, calibrated: CalibrationChoice) -> None:
    title = f"{len(deployed.digits.test.labels)} test digits, with 95 % intervals"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for name in calibrated.evaluations:
        table.add_column(f"{name} *" if name == calibrated.chosen else name, no_wrap=True)
    for metric, heading in _METRICS.items():
        scale = 100 if heading.endswith("%") else 1
        cells = [e.estimates()[metric] for e in calibrated.evaluations.values()]
        texts = [
            f"{scale * c.value:.3g} [dim]({scale * c.low:.3g}-{scale * c.high:.3g})[/dim]" for c in cells
        ]
        table.add_row(heading, *texts)
    story.say(table)
    story.say("* least NLL on 300 digits kept for the choice; this one is served")


def _show_fused(story: Story, fused: Fused) -> None:
    report = fused.report
    story.say(f"artifact {fused.artifact}: manifest.yaml + params.safetensors")
    story.say(f"fused {fused.onnx}: {report.nodes_before} nodes before, {report.nodes_after} after")
    for line in report.done:
        story.say(f"  {line}")
    story.say(f"largest difference of any probability, onnxruntime from torch: {fused.max_difference:.1e}")
    if not fused.max_difference < 1e-5:
        raise ServerError("the fused graph does not compute what torch computes")


def _packed(story: Story, deployed: Deployed, artifact: Path, store: Path, *, version: str) -> Server:
    ports = Ports.free() if Ports().taken() else None
    if ports:
        story.say("the ports of config.properties are taken; using free ones")
    folder = story.out / "server"
    return online.server(deployed.model, artifact, version=version, store=store, folder=folder, ports=ports)


def _predict_and_label(story: Story, server: Server, deployed: Deployed) -> Answers:
    answers = predict(server, deployed.digits.test)
    first = answers.replies[0]
    story.say(f"{len(answers.replies)} predictions by workers {dict(answers.workers)}; the first:")
    receipt = f"receipt {first['receipt'][:32]}..."
    story.say(f"  predicted {first['predicted']}, confidence {first['confidence']:.4f}, {receipt}")
    counted = sum(outcome["accepted"] for outcome in send_labels(server, answers.items))
    before = Counters.holding(server, answers.bins).feedback()
    story.say(f"{counted} labels counted")
    refused = refusals(server, answers)
    for attempt, outcome in refused.items():
        story.say(f"  {attempt}: refused as {outcome['reason']} ({outcome['message']})")
    if any(outcome["accepted"] for outcome in refused.values()):
        raise ServerError("a label that should have been refused was counted")
    after = Counters.until(server, "calib_feedback_refused_total", len(refused))
    if after.feedback() != before:
        raise ServerError("a refused label changed a count")
    reasons = after.by("calib_feedback_refused_total", "reason")
    story.say(f"refusals counted: { ({r: int(n) for r, n in reasons.items() if n}) }; no other count moved")
    return answers


def _compare(story: Story, server: Server, answers: Answers) -> None:
    live, offline = Counters.scrape(server).feedback(), answers.bins
    story.say(f"live ECE, from the sums of a day of {server.metrics}/metrics: {live.ece():.9f}")
    story.say(f"offline ECE of the same {offline.n:.0f} predictions:                 {offline.ece():.9f}")
    story.say(f"difference {abs(live.ece() - offline.ece()):.1e}, over {len(answers.workers)} workers")
    if abs(live.ece() - offline.ece()) > 1e-6 or len(answers.workers) < 2:
        raise ServerError("the live ECE must equal the offline one over two workers")


def _shift(story: Story, server: Server, deployed: Deployed, answers: Answers, *, seed: int) -> None:
    told = len(answers.replies)
    if Counters.scrape(server).total("calib_drift_alarms_total"):
        raise ServerError("the drift alarm fired before anything was shifted")
    story.say(f"no alarm in {told} labels of unshifted digits; now rotated by up to 45 degrees, noise sd 0.1")
    shifted = _shifted(deployed, seed=seed)
    seen: list[Answers] = []
    for start in range(0, _MOST_SHIFTED, _ALARM_BATCH):
        seen.append(predict(server, shifted[start : start + _ALARM_BATCH]))
        told += sum(outcome["accepted"] for outcome in send_labels(server, seen[-1].items))
        if Counters.after(server, told).total("calib_drift_alarms_total"):
            break
    else:
        raise ServerError(f"no drift alarm in {_MOST_SHIFTED} labels of shifted digits")
    bins = sum((one.bins for one in seen[1:]), start=seen[0].bins)
    story.say(
        f"[bold]drift alarm[/bold] after {bins.n:.0f} shifted digits, labelled {_ALARM_BATCH} at a time"
    )
    story.say(_said(bins))
    more = predict(server, shifted[int(bins.n) : _MOST_SHIFTED])
    send_labels(server, more.items)


def _shifted(deployed: Deployed, *, seed: int) -> Split:

    test, rng = deployed.digits.test, np.random.default_rng(seed)
    return digits.Split(digits.shifted(test.images, degrees=45, noise=0.1, rng=rng), test.labels)


def _said(bins: Bins) -> str:
    return (
        f"accuracy {bins.accuracy():.2f}, mean confidence {bins.mean_confidence():.2f}, ECE {bins.ece():.3f} "
        f"(a calibrated model would show {bins.noise_floor():.3f} by chance)"
    )


def _refitted(story: Story, server: Server, calibrated: CalibrationChoice, *, predictions: int) -> Path:
    """Fit the output again on the server's samples after the shift; return the new artifact's folder."""
    kept = sampled(server, version="1.0", predictions=predictions, latest=_MOST_SHIFTED)
    judged = refit(calibrated.artifact, kept.logits, kept.labels, method="temperature")
    story.say(f"refit on the {judged.samples} latest labelled predictions that the server kept:")
    story.say(judged.says())
    if judged.artifact is None:
        raise ServerError("the refit gained nothing on shifted digits")
    return judged.artifact.save(story.out / "artifact-refitted")


def _recovered(story: Story, server: Server, deployed: Deployed, *, seed: int) -> None:
    fresh = predict(server, _shifted(deployed, seed=seed + 1))
    story.say(f"version 1.1 serves; {fresh.bins.n:.0f} digits shifted afresh: {_said(fresh.bins)}")


def _report(story: Story, deployed: Deployed, calibrated: CalibrationChoice) -> None:
    labels = deployed.digits.test.labels
    path = write_report(
        story.out / "report.html",
        title="Digits, before and after calibration",
        before=(calibrated.probs["uncalibrated"], labels),
        after=(calibrated.probs[calibrated.chosen], labels),
        artifact=calibrated.artifact,
    )
    story.say(f"reliability diagrams before and after, in one file: {path.resolve()}")


def _wait(story: Story, server: Server, model: str, feedback: str) -> None:
    image = str([[[0.5] * 8] * 8]).replace(" ", "")
    read = f"import json; print(json.load(open('{server.key_file}'))['inference']['key'])"
    curl = 'curl -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json"'
    story.say(
        "\nThe server is up until Ctrl-C. Try:\n"
        f'  TOKEN=$(python3 -c "{read}")\n'
        f"  {curl} {server.inference}/predictions/{model} -d '{image}'\n"
        f'  {curl} {server.inference}/predictions/{feedback} -d \'[{{"receipt": "...", "label": 3}}]\'\n'
        f"  curl {server.metrics}/metrics",
        soft_wrap=True,
        markup=False,
    )
    try:
        server.wait()
    except KeyboardInterrupt:
        return
    raise ServerError(f"TorchServe ended by itself; see {server.log_file}")
