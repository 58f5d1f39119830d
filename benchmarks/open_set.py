"""How many samples are refused as of none of the classes; and is what is calibrated so by coarse classes?

    CALIB_SERVE_DATA=... python benchmarks/open_set.py [--draws 200] [--quick]

1. The promise: a temperature on a third of real scores, the threshold of ``known_refused`` on another, the
   share of the last that is refused; over many draws its mean is at most what is promised.
2. Samples of no known class: ten digits of which a model knows eight; CIFAR-100 shown to a CIFAR-10 network.
3. Levels of a tree: before and after a temperature, the ECE of classes and of their groups. Four CIFAR-10
   networks by animals and vehicles; CIFAR-100 by its 20 superclasses, a logistic regression of features.

Writes benchmarks/results/open_set.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import cifar  # noqa: E402
import numpy as np  # noqa: E402
import peers  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402

from calib_serve import Scores, calibrate  # noqa: E402
from calib_serve.fit.decisions import fit_refusal  # noqa: E402
from calib_serve.metrics import Tree, coverage_range, evaluate, evaluate_levels, judge, open_set  # noqa: E402

LOGITS = ("kull_resnet110_c10", "c10LT_resnet110", "akamaster_resnet56_c10", "banking77_mlp_inhouse")
OF_CIFAR_10 = {
    "animal": ["bird", "cat", "deer", "dog", "frog", "horse"],
    "vehicle": ["airplane", "automobile", "ship", "truck"],
}
OF_CIFAR_100 = {  # Krizhevsky 2009, table 3.1
    "aquatic mammals": ["beaver", "dolphin", "otter", "seal", "whale"],
    "fish": ["aquarium_fish", "flatfish", "ray", "shark", "trout"],
    "flowers": ["orchid", "poppy", "rose", "sunflower", "tulip"],
    "food containers": ["bottle", "bowl", "can", "cup", "plate"],
    "fruit and vegetables": ["apple", "mushroom", "orange", "pear", "sweet_pepper"],
    "household electrical devices": ["clock", "keyboard", "lamp", "telephone", "television"],
    "household furniture": ["bed", "chair", "couch", "table", "wardrobe"],
    "insects": ["bee", "beetle", "butterfly", "caterpillar", "cockroach"],
    "large carnivores": ["bear", "leopard", "lion", "tiger", "wolf"],
    "large man-made outdoor things": ["bridge", "castle", "house", "road", "skyscraper"],
    "large natural outdoor scenes": ["cloud", "forest", "mountain", "plain", "sea"],
    "large omnivores and herbivores": ["camel", "cattle", "chimpanzee", "elephant", "kangaroo"],
    "medium-sized mammals": ["fox", "porcupine", "possum", "raccoon", "skunk"],
    "non-insect invertebrates": ["crab", "lobster", "snail", "spider", "worm"],
    "people": ["baby", "boy", "girl", "man", "woman"],
    "reptiles": ["crocodile", "dinosaur", "lizard", "snake", "turtle"],
    "small mammals": ["hamster", "mouse", "rabbit", "shrew", "squirrel"],
    "trees": ["maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"],
    "vehicles 1": ["bicycle", "bus", "motorcycle", "pickup_truck", "train"],
    "vehicles 2": ["lawn_mower", "rocket", "streetcar", "tank", "tractor"],
}


def temperature(logits, labels):
    return calibrate(logits, labels, "temperature", cross_validate=False, outputs="logits")


def logits_of(name):
    with np.load(cifar.data_dir() / "logits" / f"{name}.npz") as arrays:
        return [
            (arrays[f"{part}_logits"].astype(np.float64), arrays[f"{part}_labels"].ravel().astype(int))
            for part in ("cal", "test")
        ]


def promise(draws, refused=0.05):
    """The mean share of known samples that is refused, less the promise, in standard errors."""
    found = {}
    for name in LOGITS:
        z, y = (np.concatenate(part) for part in zip(*logits_of(name), strict=True))
        n, shares = len(y) // 3, []
        for seed in range(draws):
            fit, held, test = np.split(np.random.default_rng(seed).permutation(len(y)), [n, 2 * n])
            artifact = temperature(z[fit], y[fit])
            rule = fit_refusal(artifact.of_logits(z[held]), known_refused=refused)
            shares.append(float(rule(artifact.of_logits(z[test])).mean()))
        error = np.std(shares, ddof=1) / np.sqrt(draws)
        exact = coverage_range(n, 1 - refused)
        found[name] = {
            "n": n,
            "mean": np.mean(shares),
            "error": error,
            "above_promise_z": (np.mean(shares) - refused) / error,
            "range": [1 - exact.high, 1 - exact.low],
            "most": max(shares),
        }
        print(name, found[name], flush=True)
    return found


def apart(artifact, held, known, unknown):
    """AUROC, and the shares that are refused, of logits of known samples and of others."""
    found = {}
    for refused in (0.05, 0.1):
        rule = fit_refusal(artifact.of_logits(held), known_refused=refused)
        tops = (artifact.of_logits(z).max(axis=1) for z in (known, unknown))
        measured = open_set(*tops, threshold=rule.threshold)
        found[str(refused)] = {name: one.as_dict() for name, one in measured.items()}
    return found


def digits(left_out=(3, 8)):
    x, y = load_digits(return_X_y=True)
    known = ~np.isin(y, left_out)
    fit, cal, held, test = np.split(
        np.random.default_rng(0).permutation(np.flatnonzero(known)), [400, 700, 1070]
    )
    model = LogisticRegression(max_iter=2000).fit(x[fit], y[fit])
    labels = np.searchsorted(model.classes_, y)
    z = model.decision_function(x)
    return apart(temperature(z[cal], labels[cal]), z[held], z[test], z[~known])


def network():
    net = cifar.resnet20().eval()
    net.load_state_dict(load_file(cifar.data_dir() / "models" / "akamaster_resnet20_c10.safetensors"))
    return net


@torch.no_grad()
def features_of(net, images):
    """Logits (n, 10) and the last features (n, 64)."""
    kept, features = [], []
    hook = net.linear.register_forward_pre_hook(lambda _, given: features.append(given[0]))
    for part in torch.from_numpy(images).split(250):
        kept.append(net(part))
    hook.remove()
    return torch.cat(kept).double().numpy(), torch.cat(features).double().numpy()


def hundred():
    """Images in [0, 1], labels and names of half of CIFAR-100's test set."""
    folder = cifar.data_dir() / "images"
    with np.load(folder / "cifar100_test_a_labels.npz") as arrays:
        y, names = arrays["labels"].astype(int), tuple(map(str, arrays["classes"]))
    return cifar.sheet(folder / "cifar100_test_a.webp").astype(np.float32) / 255, y, names


def levels_of(scores, tree):
    """The ECE and the verdict of the classes, and of each level above them."""
    rows = [("classes", scores.classes, evaluate(scores), judge(scores))]
    rows += [(one.level, len(one.nodes), one.metrics, one.verdict) for one in evaluate_levels(scores, tree)]
    return [
        {"level": level, "nodes": nodes, "accuracy": m.accuracy.value, "ece": m.ece.as_dict(),
         "nll": m.nll.value, "verdict": verdict.level}
        for level, nodes, m, verdict in rows
    ]  # fmt: skip


def before_and_after(cal, test, names, nested):
    tree, artifact = Tree.of(nested, names), temperature(*cal)
    scores = Scores.of(*test, outputs="logits", class_names=names)
    found = {"before": levels_of(scores, tree), "after": levels_of(artifact.calibrated(scores), tree)}
    for when, rows in found.items():
        print(
            when, [(row["nodes"], round(row["ece"]["value"], 4), row["verdict"]) for row in rows], flush=True
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draws", type=int, default=200, help="of each file of scores")
    options = peers.arguments(parser, draws=20)
    kept = promise(options.draws)
    net = network()
    (cal, cal_labels), (test, _) = logits_of("akamaster_resnet20_c10")
    x, y, names = hundred()
    unknown, features = features_of(net, x)
    half = len(cal) // 2
    others = {
        "digits": digits(),
        "cifar": apart(temperature(cal[:half], cal_labels[:half]), cal[half:], test, unknown),
    }
    print(others, flush=True)
    levels = {}
    for name in (*LOGITS[:3], "akamaster_resnet20_c10"):
        levels[name] = before_and_after(*logits_of(name), cifar.NAMES, OF_CIFAR_10)
    # 2,500 images of 100 classes are few: without a penalty it learns them by heart, as networks do.
    features = (features - features[:2500].mean(axis=0)) / features[:2500].std(axis=0)
    model = LogisticRegression(C=10, max_iter=2000).fit(features[:2500], y[:2500])
    z = model.decision_function(features)
    levels["cifar100"] = before_and_after(
        (z[2500:3500], y[2500:3500]), (z[3500:], y[3500:]), names, OF_CIFAR_100
    )
    peers.save("open_set", {"promise": kept, "unknown": others, "levels": levels}, options)


if __name__ == "__main__":
    main()
