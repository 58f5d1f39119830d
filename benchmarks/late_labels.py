"""Does the promised run length hold for labels as they come: late by outcome, in groups, chosen?

    CALIB_SERVE_DATA=... python benchmarks/late_labels.py [--streams 200] [--quick]

Streams of calibrated predictions, with confidences like real ones, go to a detector at its defaults but for
a run length of 2,000 until it alarms, or until 20 times that. Wrong labels come after 10 minutes on average
and right ones after 2 hours, at a prediction every 4 seconds; or the predictions of a group of 20 are right
or wrong together; or all below confidence .7 are labelled and 1 % above. Ours feeds labels in the order of
their predictions, those that come within the 99 % point of all delays, and names the groups. Beside it
stands what others do: the order of arrival, and single labels.

Writes benchmarks/results/late_labels.json.
"""

from __future__ import annotations

import argparse

import drift_streams
import numpy as np
import peers

from calib_serve.monitor import Detector

ARL = 2_000
LONGEST = 20 * ARL
EVERY, SOON, LATE = 4.0, 600.0, 7200.0  # seconds: between predictions; mean delays of wrong and of right ones
STEP = 500  # labels between two looks
KINDS = ("baseball", "electricity", "employment", "drawn")


def late(rng, c):
    """(ours, as others do): the order in which labels of calibrated predictions (n,) are fed, and groups."""
    y = rng.random(len(c)) < c
    made = EVERY * np.arange(len(c))
    delay = rng.exponential(np.where(y, LATE, SOON))
    mature = np.flatnonzero(delay <= np.quantile(delay, 0.99))
    return y, {"ours": (mature, None), "plain": (np.argsort(made + delay), None)}


def grouped(rng, c):
    """Groups of 20 that follow one another; all of one group are right or wrong together."""
    groups = np.arange(len(c)) // 20 + 1
    y = np.repeat(rng.random(len(c) // 20 + 1), 20)[: len(c)] < c
    every = np.arange(len(c))
    return y, {"ours": (every, groups), "plain": (every, None)}


def queued(rng, c):
    """A review queue: what is fed depends on the confidence alone, so that nothing has to be done."""
    y = rng.random(len(c)) < c
    asked = np.flatnonzero((c < 0.7) | (rng.random(len(c)) < 0.01))
    return y, {"ours": (asked, None), "plain": (asked, None)}


CASES = {"late by outcome": late, "groups of 20": grouped, "review queue": queued}


def first_alarm(c, y, order, groups):
    """Labels until the first alarm, or until there are no more."""
    detector = Detector(arl=ARL)
    for at in range(0, len(order), STEP):
        rows = order[at : at + STEP]
        told = {} if groups is None else {"group": groups[rows]}
        if alarms := detector.update(c[rows], y[rows], **told):
            return alarms[0].label, True
    return len(order), False


def run_length(kind, case, way, streams):
    """Labels watched for each false alarm, over what was promised."""
    watched, alarms = 0, 0
    for seed in range(streams):
        rng = np.random.default_rng([seed, KINDS.index(kind)])
        c = drift_streams.confidences(kind, rng, LONGEST)
        y, ways = CASES[case](rng, c)
        labels, alarmed = first_alarm(c, y, *ways[way])
        watched, alarms = watched + labels, alarms + alarmed
    return watched / max(alarms, 1) / ARL, alarms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    options = peers.arguments(parser, streams=10)
    result: dict = {"streams": options.streams, "arl": ARL, "run_lengths": {}}
    for case in CASES:
        rows = result["run_lengths"][case] = {}
        for kind in KINDS:
            rows[kind] = {way: run_length(kind, case, way, options.streams) for way in ("ours", "plain")}
            told = "   ".join(f"{way} {length:6.2f} ({n} alarms)" for way, (length, n) in rows[kind].items())
            print(f"{case:16s} {kind:12s} {told}", flush=True)
    peers.save("late_labels", result, options)


if __name__ == "__main__":
    main()
