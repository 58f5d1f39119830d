"""How many cores a process may use: what a container's control group grants counts too."""

from __future__ import annotations

from pathlib import Path

import pytest

from calib_serve.fit.solve import parallel


@pytest.mark.parametrize(
    ("files", "granted"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "nonsense"}, None),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_the_quota_is_read_from_either_version_of_control_groups(
    files: dict[str, str], granted: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert parallel._quota(tmp_path) == granted


def test_small_problems_run_linear_algebra_on_one_thread_and_give_the_threads_back() -> None:
    pools = pytest.importorskip("threadpoolctl")

    def threads() -> list[int]:
        return [pool["num_threads"] for pool in pools.threadpool_info() if pool["user_api"] == "blas"]

    before = threads()
    with parallel.one_thread(1000):
        assert set(threads()) <= {1}
    assert threads() == before
