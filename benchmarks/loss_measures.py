"""What is measured of a network trained with a loss: at the end, after calibration, and on the way."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import spearmanr

from calib_serve.core.errors import FitError
from calib_serve.fit.output.ece_grid import fit_temperature_ece
from calib_serve.fit.output.tables import fit_histogram_width
from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.fit.samples import Samples
from calib_serve.metrics import accuracy, adaptive_ece, brier, classwise_ece, ece, refinement_auroc
from calib_serve.scores import softmax

CAL_SIZES = (100, 250, 500, 1000, 2000)
CHECKPOINTS = 4  # Lin 2025, figure 4: after each quarter of the training


def of_network(cal, test):
    """Errors of the test set as it is, after three calibrations fitted on ``cal``, and at best.

    ``TS`` is a temperature by NLL, ``pool TS`` by ECE from Wang's pool .01, .02, ..., 10, ``HB`` his
    histogram of 15 equal bins of the confidence. ``optimal ECE`` takes the pool's best for the test set.
    """
    (z, y), t, pool = test, by_nll(cal), by_pool(cal)
    p, scaled = softmax(z), softmax(z / t)
    return {
        "accuracy": accuracy(p, y),
        "Brier": brier(p, y),
        "ECE": ece(p, y),
        "AECE": adaptive_ece(p, y),
        "SCE": classwise_ece(p, y),
        "AUROC": refinement_auroc(p, y),
        "confidence": float(p.max(axis=1).mean()),
        "ECE on cal": ece(softmax(cal[0]), cal[1]),
        "T": t,
        "Brier after TS": brier(scaled, y),
        "ECE after TS": ece(scaled, y),
        "AECE after TS": adaptive_ece(scaled, y),
        "SCE after TS": classwise_ece(scaled, y),
        "AUROC after TS": refinement_auroc(scaled, y),
        "pool T": pool,
        "ECE after pool TS": ece(softmax(z / pool), y),
        "AECE after pool TS": adaptive_ece(softmax(z / pool), y),
        "ECE after HB": after_histogram(cal, test),
        "optimal ECE": optimal(test),
    }


def by_nll(cal):
    try:
        return float(fit_temperature(Samples.of(*cal)).fit["temperature"])
    except FitError:  # every calibration sample is right: no finite temperature is best
        return 1.0


def by_pool(cal):
    return float(fit_temperature_ece(Samples.of(*cal), grid="medium").fit["temperature"])


def optimal(test):
    z, y = test
    return ece(softmax(z / by_pool(test)), y)


def after_histogram(cal, test):
    """ECE of the predicted class's share of right predictions in its bin (Wang 2021, section 2)."""
    z, y = test
    share = fit_histogram_width(Samples.of(*cal), bins=15, of="top", smoothing=0).probs(z)
    predicted = z.argmax(axis=1)
    confidence, right = share[np.arange(len(y)), predicted], predicted == y
    bins = np.clip(np.ceil(15 * confidence).astype(int) - 1, 0, 14)
    return float(np.abs(np.bincount(bins, confidence - right, minlength=15)).sum() / len(y))


def by_cal_size(cal, test):
    """ECE after the pool's temperature and after a histogram, fitted to the first n samples (figure 3)."""
    found = []
    for n in (n for n in CAL_SIZES if n <= len(cal[1])):
        few = (cal[0][:n], cal[1][:n])
        scaled = ece(softmax(test[0] / by_pool(few)), test[1])
        found.append({"n": n, "pool TS": scaled, "HB": after_histogram(few, test)})
    return found


def on_the_way(epoch, train_accuracy, test):
    """A row of the curves over epochs (Wang 2021, figure 4; Lin 2025, figure 5a)."""
    p = softmax(test[0])
    return {
        "epoch": epoch,
        "train accuracy": train_accuracy,
        "accuracy": accuracy(p, test[1]),
        "ECE": ece(p, test[1]),
        "optimal ECE": optimal(test),
    }


class Learned:
    """The epoch since which each training sample was right without a break (Wang 2021, section 5.1)."""

    def __init__(self, samples):
        self.epoch = np.zeros(samples, int)
        self.now = 0

    def next_epoch(self):
        self.now += 1

    def update(self, rows, right):
        self.epoch[rows[~right]] = self.now + 1

    def logits(self, z):
        """Mean and spread of the largest logit (n,) by the third of the training that learned a sample."""
        thirds = np.clip(3 * self.epoch // max(self.now, 1), 0, 3)
        names = ("first third", "second third", "last third", "never")
        top = z.max(axis=1)
        groups = {name: top[thirds == i] for i, name in enumerate(names)}
        return {
            name: {"n": len(group), "mean": float(group.mean()), "sd": float(group.std())}
            for name, group in groups.items()
            if len(group)
        }


def gradients(network, loss, x, y):
    """Norms of the last layer's gradient of each sample against its Brier score (Lin 2025, figures 4, 5).

    ``rank correlation`` is Spearman's; ``spread`` the mean over tenths of the Brier score of the norms'
    interquartile range, divided by the range of the tenths' medians: narrow is low.
    """
    with torch.no_grad():
        h = network[:-1](x)
    z = network[-1](h).detach().requires_grad_()
    loss(z, y).backward()
    # The loss is a mean: times n it is each sample's own. The layer's gradient: an outer product with (h, 1).
    norms = (len(y) * z.grad.norm(dim=1) * (h.square().sum(dim=1) + 1).sqrt()).double().numpy()
    p = softmax(z.detach().double().numpy())
    scores = ((p - np.eye(p.shape[1])[y.numpy()]) ** 2).sum(axis=1)
    tenths = [norms[rows] for rows in np.array_split(np.argsort(scores, kind="stable"), 10)]
    quartiles = np.array([np.quantile(tenth, (0.25, 0.5, 0.75)) for tenth in tenths])
    medians = np.ptp(quartiles[:, 1])
    spread = float((quartiles[:, 2] - quartiles[:, 0]).mean() / medians) if medians > 0 else None
    return {
        "rank correlation": float(spearmanr(norms, scores).statistic) if np.ptp(norms) > 0 else None,
        "spread": spread,
        "quantiles": np.quantile(norms, (0.05, 0.25, 0.5, 0.75, 0.95)).tolist(),
    }
