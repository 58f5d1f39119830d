"""Ranks of one classifier get the numbers of one process: any number of ranks, batches and inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from sizes import sized

from calib_serve.artifact import InputShift
from calib_serve.model import from_module
from calib_serve.model.ranks import RankedClassifier

BATCH = 8
SIZES = (1, 7, 16, 61)
WORLDS = sized(ci=(2,), nightly=(2, 4))


def classifier():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(12, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4)
    )
    return from_module(model.eval(), input_shape=(3, 2, 2), batch_size=BATCH)


def drawn(n):
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, 3, 2, 2)).astype(np.float32)


def loss(logits, rows):
    """It weighs inputs by their place among all, so that a rank that is off by one shows."""
    weights = torch.arange(rows.start + 1, rows.stop + 1, dtype=logits.dtype)
    return (weights * torch.logsumexp(logits, dim=1)).sum()


def told(of):
    shift = InputShift(np.full((3, 2, 2), 0.1, np.float32))
    found = {}
    for n in SIZES:
        inputs = drawn(n)
        gradient, logits = of.input_gradient(inputs, loss, shift=shift)
        found[n] = of.logits(inputs), of.features(inputs), gradient, logits
    return found


def work(rank, world, file, answers):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=world)
    found = told(RankedClassifier(classifier(), rank, world))
    torch.save(
        {str(n): [torch.from_numpy(one) for one in each] for n, each in found.items()}, f"{answers}{rank}"
    )
    torch.distributed.destroy_process_group()


@pytest.mark.server
@pytest.mark.parametrize("world", WORLDS)
def test_every_rank_has_what_one_process_has(tmp_path, world):
    mp.spawn(work, args=(world, tmp_path / "meet", tmp_path / "rank"), nprocs=world)
    alone = told(classifier())
    for rank in range(world):
        found = torch.load(tmp_path / f"rank{rank}")
        for n in SIZES:
            logits, features, gradient, seen = (one.numpy() for one in found[str(n)])
            np.testing.assert_array_equal(logits, alone[n][0])
            np.testing.assert_array_equal(features, alone[n][1])
            np.testing.assert_allclose(gradient, alone[n][2], rtol=1e-12)
            np.testing.assert_array_equal(seen, alone[n][3])
