"""Are class shares found without labels, does correcting by them help, and is what is no label shift refused?

    CALIB_SERVE_DATA=... python benchmarks/prior_shift.py [--resamples 200] [--traffic 2000] [--images 4000]

Label shift is made from real logits: calibration samples and traffic are drawn anew from one population (all
samples of a file), the traffic with class shares from a Dirichlet distribution. Reported are the coverage and
error of 95 % intervals (``bbse``), how often a change of shares and a
misfit are called where there is none, and NLL and classwise ECE of the traffic before the correction, after
it by estimated shares, and by the true ones. Other shifts: the same test images as JPEG, noisy and blurred,
through a CIFAR-10 ResNet-20; another network's logits in the place of the fitted one's; and PneumoniaMNIST's
own test set.

Writes benchmarks/results/prior_shift.json.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import cifar
import numpy as np
import peers
import torch
from corruptions import CORRUPTIONS, corrupt
from safetensors.torch import load_file

from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.fit.samples import Samples
from calib_serve.fit.shares import confused, estimate_prior, with_prior
from calib_serve.metrics import classwise_ece, nll

LOGITS = (
    *("kull_resnet110_c10", "resnet50_c10_cross_entropy", "akamaster_resnet20_c10"),
    *("c10LT_resnet110", "banking77_mlp_inhouse", "pneumonia_cnn_inhouse"),
)
METHODS = ("temperature", "structured-vector")


def read(folder, name):
    with np.load(folder / "logits" / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def drawn(labels, shares, n, rng):
    """Rows, with replacement, of labels with these shares: label shift and nothing else."""
    each = rng.choice(len(shares), n, p=shares)
    return np.concatenate(
        [rng.choice(np.flatnonzero(labels == k), int((each == k).sum())) for k in range(len(shares))]
    )


def fitted(z, y, method):
    return confused(fit_by_name(method, z, y), Samples.of(z, y))


def label_shift(file, method, resamples, n, rng):
    z = np.concatenate([file["cal_logits"], file["test_logits"]])
    y = np.concatenate([file["cal_labels"], file["test_labels"]])
    classes, m = z.shape[1], len(file["cal_labels"])
    rows = []
    for _ in range(resamples):
        cal = rng.integers(0, len(y), m)
        artifact = fitted(z[cal], y[cal], method)
        shares = 0.9 * rng.dirichlet(np.ones(classes)) + 0.1 / classes
        at = drawn(y, shares, n, rng)
        found = estimate_prior(artifact, z[at])
        same = estimate_prior(artifact, z[rng.integers(0, len(y), n)])
        by = found.counted
        made = [artifact, with_prior(artifact, by.shrunk), with_prior(artifact, shares)]
        probs = [one.probs(z[at]) for one in made]
        rows.append(
            {
                "covered by counts": np.mean((by.low <= shares) & (shares <= by.high)),
                "error by counts": np.abs(by.shares - shares).mean(),
                "misfit at 1 %": by.fits.p < 0.01,
                "misfit at 5 %": by.fits.p < 0.05,
                "called other": by.kind == "other",
                "called moved": by.kind == "moved",
                "unmoved called moved": same.kind == "moved",
                "unmoved called other": same.kind == "other",
                **{
                    f"nll {k}": nll(p, y[at])
                    for k, p in zip(("before", "after", "known"), probs, strict=True)
                },
                **{
                    f"classwise ece {k}": classwise_ece(p, y[at])
                    for k, p in zip(("before", "after", "known"), probs, strict=True)
                },
            }
        )
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def power(artifact, scores, n, resamples, rng):
    """How often traffic of these scores is called what, and by which misfit."""
    # Without replacement: a part of the scores is a sample of what both sets were drawn from.
    found = [estimate_prior(artifact, scores[rng.permutation(len(scores))[:n]]) for _ in range(resamples)]
    kinds = [one.kind for one in found]
    return {
        **{kind: kinds.count(kind) / len(kinds) for kind in ("same", "moved", "other", "unknown")},
        "misfit": float(np.mean([one.counted.misfit for one in found])),
    }


def of_images(folder, number, n, resamples, rng):
    """The test images of the second half as they are, and corrupted."""
    network = cifar.resnet20()
    network.load_state_dict(load_file(folder / "models" / "akamaster_resnet20_c10.safetensors"))
    network.eval()
    images, labels = cifar.cifar10_test(folder)

    def logits(pixels):
        with torch.no_grad():
            return torch.cat([network(part) for part in torch.from_numpy(pixels).split(250)]).numpy()

    artifact = fitted(logits(images[:number]), labels[:number], "temperature")
    rest = images[5000 : 5000 + number]
    results = {"as they are": power(artifact, logits(rest), n, resamples, rng)}
    for name in CORRUPTIONS:
        for severity in (1, 3):
            z = logits(corrupt(rest, name, severity))
            results[f"{name} {severity}"] = power(artifact, z, n, resamples, rng)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--traffic", type=int, default=2000)
    parser.add_argument("--images", type=int, default=4000)
    asked = peers.arguments(parser, resamples=5, traffic=1000, images=300)
    folder, rng = Path(os.environ["CALIB_SERVE_DATA"]), np.random.default_rng(0)
    shifted = {}
    for name in LOGITS:
        for method in METHODS:
            row = label_shift(read(folder, name), method, asked.resamples, asked.traffic, rng)
            shifted[f"{name} {method}"] = row
            print(name, method, {k: round(v, 4) for k, v in row.items()}, flush=True)
    own, other = (read(folder, f"akamaster_resnet{n}_c10") for n in (20, 56))
    artifact = fitted(own["cal_logits"], own["cal_labels"], "temperature")
    others = {"another network": power(artifact, other["test_logits"], asked.traffic, asked.resamples, rng)}
    real = read(folder, "pneumonia_cnn_inhouse")
    one = fitted(real["cal_logits"], real["cal_labels"], "temperature")
    found = estimate_prior(one, real["test_logits"])
    others["PneumoniaMNIST's test set"] = {found.kind: 1.0, "misfit": found.counted.misfit}
    others |= of_images(folder, asked.images, asked.traffic, asked.resamples, rng)
    for name, row in others.items():
        print(name, {k: round(v, 4) for k, v in row.items()}, flush=True)
    peers.save("prior_shift", {"label_shift": shifted, "other_shifts": others}, asked)


if __name__ == "__main__":
    main()
