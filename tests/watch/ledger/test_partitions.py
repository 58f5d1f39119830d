"""A ledger in partitions counts as one does, and each label in one of them."""

import pytest
from ledger_model import PartitionedMachine, run
from sizes import sized

pytestmark = pytest.mark.store


def test_it_is_what_its_model_says():
    run(PartitionedMachine, runs=sized(2, 10_000))
