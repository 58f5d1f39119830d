"""A ledger in partitions counts as one does, and each label in one of them."""

import pytest
from ledger_model import PartitionedMachine, run
from real_servers import RedisCluster
from sizes import sized

pytestmark = pytest.mark.store


# --- what it counts ------------------------------------------------------------------------------


def test_it_is_what_its_model_says():
    run(PartitionedMachine, runs=sized(2, 10_000))


# --- the drift detector --------------------------------------------------------------------------


# --- what it refuses -----------------------------------------------------------------------------


# --- what operators do ---------------------------------------------------------------------------


# --- Redis, and a cluster of it ------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def cluster(nodes):
    """The nodes, with nothing in them."""
    for i in range(3):
        nodes.client(i).flushall()
    return nodes
