"""Do a learned confidence and a trust score tell wrong predictions better than the largest probability?

    CALIB_SERVE_DATA=... python benchmarks/confidence_branches.py

Singh 2021 (A.2) reports that ConfidNet (Corbiere 2019) refines and calibrates at once. Here it is trained on
features of the published ResNet-20: as in its paper those of the training images, of which the network has
nearly all right, and those of 5,000 held-out images. The trust score (Jiang 2018) is the distance to the
nearest feature of another class over that of the predicted one. The other 5,000 test images judge them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

import cifar
import peers

from calib_serve.core.bins import Bins
from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.fit.samples import Samples
from calib_serve.metrics.refinement import Separation
from calib_serve.scores import softmax

PUBLISHED = {"largest probability": (5.38, 92.5), "ConfidNet": (4.1, 92.55)}  # Singh 2021, table 4: VGG-16


def confidnet(h, p_true, *, epochs, seed):
    """Learns P(true class) (n,) of features (n, d) by squared error: five layers, as in Corbiere 2019."""
    torch.manual_seed(seed)
    layers = [nn.Linear(h.shape[1], 400), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Linear(400, 400), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(400, 1), nn.Sigmoid())
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-4)
    for _ in range(epochs):
        for batch in torch.randperm(len(h)).split(128):
            optimiser.zero_grad(set_to_none=True)
            nn.functional.mse_loss(network(h[batch]).squeeze(1), p_true[batch]).backward()
            optimiser.step()
    return network.eval()


def dense(h, *, share=0.1, k=10):
    """The features (n, d) of one class without the ``share`` that lies farthest from its kth neighbour."""
    distance = torch.cdist(h, h).kthvalue(min(k + 1, len(h)), dim=1).values
    return h[distance <= torch.quantile(distance, 1 - share)]


def trust_scores(h, predicted, train, labels):
    """Distance to the nearest other class over the distance to the predicted one (n,) (Jiang 2018)."""
    classes = [dense(train[labels == k]) for k in range(int(labels.max()) + 1)]
    nearest = torch.stack([torch.cdist(h, each).min(dim=1).values for each in classes], dim=1)
    own = nearest.gather(1, predicted[:, None]).squeeze(1)
    other = nearest.scatter(1, predicted[:, None], torch.inf).min(dim=1).values
    return other / own.clamp_min(torch.finfo(own.dtype).tiny)


def judged(confidence, correct, *, probability=True):
    """AUROC of refinement, and ECE where the confidence is a probability."""
    confidence = np.asarray(confidence, np.float64)
    found = {"AUROC": float(Separation.of(confidence, correct).auroc())}
    return {**found, "ECE": Bins.tally(confidence, correct).ece()} if probability else found


def features(folder):
    with np.load(folder / "features" / "akamaster_resnet20_cifar10.npz") as arrays:
        found = {name: arrays[name] for name in arrays.files}
    head = torch.nn.Linear(64, 10)
    head.weight.data, head.bias.data = (torch.from_numpy(found[f"head_{n}"]) for n in ("weight", "bias"))
    sets = {
        name: (torch.from_numpy(found[name]).float(), torch.from_numpy(found[f"{name}_labels"]).long())
        for name in ("train", "test")
    }
    return sets, head


def run(sets, head, *, seed, epochs, samples):
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(sets["test"][1])))
    held, test = (tuple(part[rows] for part in sets["test"]) for rows in order.split(5000))
    rows = torch.from_numpy(np.random.default_rng(seed).permutation(len(sets["train"][1])))[:samples]
    train = tuple(part[rows] for part in sets["train"])
    with torch.inference_mode():
        z, z_held = (head(h).double().numpy() for h in (test[0], held[0]))
    predicted, y = z.argmax(axis=1), test[1].numpy()
    correct = predicted == y
    t = float(fit_temperature(Samples.of(z_held, held[1].numpy())).fit["temperature"])
    found = {
        "largest probability": judged(softmax(z).max(axis=1), correct),
        "largest probability after TS": judged(softmax(z / t).max(axis=1), correct),
        "trust score": judged(
            trust_scores(test[0], torch.from_numpy(predicted), *train), correct, probability=False
        ),
    }
    for name, (h, labels) in {"ConfidNet": train, "ConfidNet, held-out": held}.items():
        with torch.no_grad():
            p_true = head(h).softmax(dim=1).gather(1, labels[:, None]).squeeze(1)
        # As many steps on few held-out images as on the training images.
        passes = max(1, epochs * len(train[0]) // len(h)) if name == "ConfidNet" else 10 * epochs
        network = confidnet(h, p_true, epochs=passes, seed=seed)
        with torch.inference_mode():
            found[name] = judged(network(test[0]).squeeze(1).numpy(), correct)
    return {"seed": seed, "accuracy": float(correct.mean()), **found}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="as many as in the paper")
    parser.add_argument(
        "--epochs", type=int, default=5, help="over the training images; ten times that held out"
    )
    parser.add_argument("--samples", type=int, default=50_000, help="training images")
    options = peers.arguments(parser, seeds=1, epochs=1, samples=5000)
    torch.set_num_threads(1)
    sets, head = features(cifar.data_dir())
    runs = []
    for seed in range(options.seeds):
        runs.append(run(sets, head, seed=seed, epochs=options.epochs, samples=options.samples))
        peers.save("confidence_branches", {"runs": runs}, options)
    for name in (key for key in runs[0] if key not in ("seed", "accuracy")):
        means = {key: np.mean([each[name][key] for each in runs]) for key in runs[0][name]}
        told = ", ".join(f"{key} {100 * value:.2f}" for key, value in means.items())
        print(f"{name:30} {told}")


if __name__ == "__main__":
    main()
