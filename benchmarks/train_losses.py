"""Train a small network with each loss on real sets, then calibrate every one (Wang, Singh 2021; Lin 2025).

    CALIB_SERVE_DATA=... python benchmarks/train_losses.py                   # all, an hour of one core
    python benchmarks/train_losses.py --tasks digits --seeds 1               # needs no data
    python benchmarks/train_losses.py --losses cross-entropy mixup --seeds 2

Tasks: 5,000 CIFAR-10 images and a convolutional network that learns them by heart, 1,000 of MNIST and 300
digits with fully connected ones. Every run is written into benchmarks/results/train_losses.json as soon as
it ends, and one that is there is not trained again: a run that was broken off goes on where it stopped.
With --show nothing is trained: it prints means and standard deviations of what is recorded, in percent.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import loss_measures
import peers
from loss_settings import LOSSES, MIXUP_ALPHA
from small_networks import TASKS, parts

from calib_serve.fit import losses

SEEDS = {"images": 2, "mnist": 5, "digits": 5}
SHOWN = 2  # epochs between two points of a curve


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES), metavar="LOSS")
    parser.add_argument("--seeds", type=int, help="how many; 2 for images, 5 for the others without it")
    parser.add_argument("--epochs", type=int, help="of every task, in place of its own")
    parser.add_argument("--fresh", action="store_true", help="train again what is recorded")
    parser.add_argument("--show", action="store_true", help="print what is recorded, and train nothing")
    few = ["cross-entropy", "label smoothing .05", "mixup"]
    options = peers.arguments(parser, tasks=["digits"], losses=few, seeds=1, epochs=5, fresh=True)
    if options.show:
        show_recorded(recorded(options), options)
        return
    torch.set_num_threads(1)
    runs = [] if options.fresh else recorded(options)
    done = {(run["task"], run["loss"], run["seed"]) for run in runs}
    for task, name, seed in plan(options):
        if (task, name, seed) in done:
            continue
        runs.append(run(task, name, seed, options.epochs))
        peers.save("train_losses", {"runs": runs}, options)
        show(runs[-1])


def recorded(options):
    path = peers.result("train_losses", options)
    return json.loads(path.read_text())["runs"] if path.exists() else []


def plan(options):
    """Every run, a first seed of all losses before a second."""
    for task in options.tasks:
        for seed in range(options.seeds or SEEDS[task]):
            for name in options.losses:
                yield task, name, seed


def run(task, name, seed, epochs=None):
    """One training and all that is measured of it."""
    start = time.process_time()
    epochs = epochs or TASKS[task].epochs
    train_part, cal, test = parts(TASKS[task], seed)
    network = TASKS[task].network(seed)
    found = trained(TASKS[task], name, network, train_part, test, seed=seed, epochs=epochs)
    cal, test = ((logits(network, x), y.numpy()) for x, y in (cal, test))
    return {
        "task": task,
        "loss": name,
        "seed": seed,
        "trained for": epochs,
        **loss_measures.of_network(cal, test),
        **({"by cal size": loss_measures.by_cal_size(cal, test)} if TASKS[task].followed else {}),
        **found,
        "seconds": round(time.process_time() - start, 1),
    }


def trained(task, name, network, train_part, test, *, seed, epochs):
    """A plain loop, the loss its one line that differs; what is seen on the way is returned."""
    x, y = train_part
    optimiser, schedule = task.optimiser(network, epochs)
    generator = torch.Generator().manual_seed(seed)
    learned, curve, norms = loss_measures.Learned(len(y)), [], []
    quarters = {epochs * i // loss_measures.CHECKPOINTS for i in range(1, loss_measures.CHECKPOINTS + 1)}
    for epoch in range(1, epochs + 1):
        network.train()
        for batch in torch.randperm(len(y), generator=generator).split(task.batch):
            loss, right = step(name, network, x[batch], y[batch], generator)
            learned.update(batch.numpy(), right.numpy())
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
        learned.next_epoch()
        schedule.step()
        if task.followed and (epoch % SHOWN == 0 or epoch == epochs):
            seen = float(np.mean(learned.epoch < epoch))
            curve.append(loss_measures.on_the_way(epoch, seen, (logits(network, test[0]), test[1].numpy())))
        if task.followed and epoch in quarters:
            network.eval()
            rows = slice(0, 2000)
            found = loss_measures.gradients(network, LOSSES[name], x[rows], y[rows])
            norms.append({"epoch": epoch, **found})
    z = logits(network, x)
    right = {"train accuracy": float(np.mean(z.argmax(axis=1) == y.numpy()))}
    if not task.followed:
        return right
    return {
        **right,
        "curve": curve,
        "largest logit by when it was learned": learned.logits(z),
        "gradients": norms,
    }


def step(name, network, x, y, generator):
    """The loss of a batch, and which of it are predicted right."""
    if name != "mixup":
        z = network(x)
        return LOSSES[name](z, y), z.detach().argmax(dim=1) == y
    # A batch mixed with itself in another order (Thulasidasan 2019).
    seed = int(torch.randint(2**31, (), generator=generator))
    share = float(np.random.default_rng(seed).beta(MIXUP_ALPHA, MIXUP_ALPHA))
    order = torch.randperm(len(y), generator=generator)
    z = network(share * x + (1 - share) * x[order])
    right = z.detach().argmax(dim=1) == (y if share >= 0.5 else y[order])
    return losses.mixup(LOSSES[name], z, y, y[order], share), right


def logits(network, x):
    network.eval()
    with torch.inference_mode():
        return np.concatenate([network(part).double().numpy() for part in x.split(500)])


def show(run):
    percents = " ".join(
        f"{name} {100 * run[name]:5.2f}"
        for name in ("train accuracy", "accuracy", "ECE", "ECE after TS", "ECE after HB", "AUROC")
    )
    print(
        f"{run['task']:7} {run['seed']} {run['loss']:24} {percents} T {run['T']:.2f} ({run['seconds']} s)",
        flush=True,
    )


COLUMNS = ("train accuracy", "accuracy", "ECE", "ECE after TS", "optimal ECE", "AUROC")
COLUMNS += ("ECE on cal", "ECE after pool TS", "ECE after HB", "AECE", "SCE", "Brier", "T")


def spread(runs, key):
    """Mean and standard deviation over seeds, in percent; a temperature as it is, its mean alone."""
    values = np.array([run[key] for run in runs])
    if key in ("T", "pool T"):
        return f"{values.mean():.2f}"
    deviation = f" ± {100 * values.std(ddof=1):.2f}" if len(values) > 1 else ""
    return f"{100 * values.mean():.2f}{deviation}"


def show_recorded(runs, options):
    print(" | ".join(("task", "loss", "seeds", *COLUMNS)))
    for task in options.tasks:
        for name in options.losses:
            if found := [run for run in runs if (run["task"], run["loss"]) == (task, name)]:
                print(" | ".join((task, name, str(len(found)), *(spread(found, key) for key in COLUMNS))))


if __name__ == "__main__":
    main()
