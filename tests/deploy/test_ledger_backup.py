"""deploy/ledger-backup.yaml as Kubernetes reads it; its command is run against a real Redis."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ledgers import accept, labels_of, make_label, open_one
from manifests import check

from calib_serve.watch.ledger import restore_ledger

ROOT = Path(__file__).parents[2]
JOB = yaml.safe_load((ROOT / "deploy" / "ledger-backup.yaml").read_text())
POD = JOB["spec"]["jobTemplate"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_kubernetes_knows_every_field() -> None:
    check(JOB, "V1CronJob")


def test_it_backs_up_the_redis_of_the_pods() -> None:
    (service,) = (
        one
        for one in yaml.safe_load_all((ROOT / "deploy" / "kserve.yaml").read_text())
        if one["kind"] == "InferenceService"
    )
    (ledger,) = (one["value"] for one in CONTAINER["env"])
    assert f"--ledger={ledger}" in service["spec"]["predictor"]["containers"][0]["args"]


@pytest.mark.server
def test_its_command_writes_a_backup_that_can_be_restored(empty_redis: str, tmp_path: Path) -> None:
    url, place = empty_redis, ("redis", (empty_redis, "calib-serve"))
    ledger = open_one(*place)
    accept(ledger, [make_label(1)])
    ledger.close()
    (program,) = CONTAINER["args"]
    program = program.replace("/backups", str(tmp_path)).replace(
        "calib-serve", f"{sys.executable} -m calib_serve", 1
    )
    subprocess.run(
        [*CONTAINER["command"], program], check=True, env={**os.environ, "CALIB_SERVE_LEDGER": url}
    )
    (made,) = tmp_path.iterdir()
    restore_ledger(made, url, replace=True)
    assert labels_of(*place) == 1
