"""Numbers of TorchServe that were observed on running servers."""

from __future__ import annotations

BYTES_READ_AHEAD = 32 << 10
"""Bytes of stdout behind a line after which the server has counted it: it reads 17 kB ahead at most."""

OLDEST_JAVA, NEWEST_JAVA = 17, 25
"""Versions of Java: TorchServe 0.12 is written for 17; our servers' tests pass on 17, 21 and 25."""

SECONDS_OF_A_PROCESS = 240.0
"""Seconds that a worker's process may take beyond the start of its model: TorchServe gives it two minutes to
start, and two more to be connected."""

UNMATCHED_SHARE = 0.02
"""Share of replies without a receipt from which on a check fails: their labels are missing, which hides a gap
of about that size at most, and a gap of 0.02 is the tolerance of the alerts."""

SECONDS_TO_NOTE = 60.0
"""Seconds after which a worker notes a failing check again in the ledger, which tells it for five minutes."""

REPLIES_LOOKED_BACK = 500
"""The latest replies of a worker that this share is of: ten single ones are no trouble yet."""
