"""What a path is mounted from, as Linux tells it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from calib_serve.doctor.world import World

__all__ = ["Mount", "mount_of"]

_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ocfs2",
    "virtiofs",
)
_FUSE = (
    "sshfs",
    "s3fs",
    "gcsfuse",
    "rclone",
    "blobfuse",
    "goofys",
    "mount-s3",
    "glusterfs",
    "ceph",
    "juicefs",
)


@dataclass(frozen=True)
class Mount:
    """The mount ``point``, the ``kind`` of its file system, and its ``options``."""

    point: str
    kind: str
    options: frozenset[str]

    @property
    def is_of_network(self) -> bool:
        """Whether other hosts may hold it open, too.

        >>> Mount("/data", "nfs4", frozenset()).is_of_network, Mount("/", "ext4", frozenset()).is_of_network
        (True, False)
        """
        kind, _, of_fuse = self.kind.partition(".")
        return kind.startswith(_NETWORK) or (kind == "fuse" and of_fuse.startswith(_FUSE))


def mount_of(path: Path, world: World) -> Mount | None:
    """The mount that holds a path, which need not be there; None where the system does not tell."""
    said = world.text("proc/self/mountinfo")
    if said is None:
        return None
    real = os.path.realpath(path)
    best: Mount | None = None
    for line in said.splitlines():
        before, _, after = line.partition(" - ")
        fields, more = before.split(), after.split()
        if len(fields) < 6 or not more:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        holds = point in ("/", real) or real.startswith(point + "/")
        # Of two at one place the later one lies over the earlier.
        if holds and (best is None or len(point) >= len(best.point)):
            best = Mount(point, more[0], frozenset(fields[5].split(",")))
    return best
