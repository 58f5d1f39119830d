"""Receipts by the user's own ids: the first binding stays, the oldest leave, and none is lost in silence."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest
from real_watch import RING

from calib_serve.errors import Refused
from calib_serve.watch.ids import Binding, open_ids, receipt_of

pytestmark = pytest.mark.store


def sign(predicted=1, **more):
    facts = {"model": "m", "version": "1", "predicted": predicted, "confidence": 0.9}
    return RING.sign(**facts | more)


def bindings(*names, model="m"):
    return [Binding(model, name, sign(model=model)) for name in names]


@pytest.fixture(params=["sqlite", "redis"])
def address(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return request.getfixturevalue("empty_redis")


@pytest.fixture
def make(address):
    made = []

    def open_one(**options):
        made.append(open_ids(address, **{"most": 1000, "ttl": 3600.0} | options))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def test_an_id_finds_its_receipt_also_by_another_process_and_after_a_restart(make):
    ids, other = make(), make()
    (one, two) = bindings("order-17", "Bestellung \N{SNOWMAN} 18")
    assert ids.bind([one, two]) == [one.receipt, two.receipt]
    assert other.find(["order-17", two.id, "order-19"]) == [{"m": one.receipt}, {"m": two.receipt}, {}]
    ids.close()
    assert make().find(["order-17"]) == [{"m": one.receipt}]
    assert make().size() == 2


def test_an_id_may_name_predictions_of_two_models(make):
    ids = make()
    (one,), (two,) = bindings("a"), bindings("a", model="n")
    assert ids.bind([one, two]) == [one.receipt, two.receipt]
    (found,) = ids.find(["a"])
    assert receipt_of(found, id="a", model="n") == two.receipt
    for model, reason in ((None, "malformed"), ("o", "unknown_id"), (7, "malformed")):
        with pytest.raises(Refused) as refusal:
            receipt_of(found, id="a", model=model)
        assert refusal.value.reason == reason


def test_the_oldest_leave_first_and_are_counted(make):
    ids = make(most=100)
    for start in range(0, 250, 50):
        ids.bind(bindings(*(f"order-{i}" for i in range(start, start + 50))))
    assert ids.size() == 100
    assert ids.evicted == 150
    found = ids.find([f"order-{i}" for i in range(250)])
    assert [bool(one) for one in found] == [False] * 150 + [True] * 100


def test_ids_leave_with_the_time_to_live_of_labels_and_that_is_no_eviction(make):
    ids = make(ttl=0.5, most=10)
    ids.bind(bindings(*map(str, range(10))))
    time.sleep(2)  # the file counts in whole seconds
    assert ids.find(["3"]) == [{}]
    ids.bind(bindings(*(f"new {i}" for i in range(10))))
    assert (ids.evicted, ids.size()) == (0, 10)


def test_threads_that_bind_one_id_agree_who_was_first(make):
    stores = [make() for _ in range(4)]
    offered = [bindings(*map(str, range(50))) for _ in stores]
    agreed = [None] * len(stores)

    def bind(i):
        agreed[i] = stores[i].bind(offered[i])

    threads = [threading.Thread(target=bind, args=(i,)) for i in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one == agreed[0] for one in agreed)


def test_the_file_is_its_owners_and_holds_no_id(tmp_path):
    ids = open_ids(str(tmp_path / "ledger.db"), most=10)
    assert ids.find(["a"]) == [{}]
    assert not list(tmp_path.iterdir())  # nothing is made before there is an id
    ids.bind(bindings("patient Ana Maria"))
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"Ana Maria" not in path.read_bytes()
    ids.close()


BINDER = """
import sys
from calib_serve.receipts import Keyring
from calib_serve.watch.ids import Binding, open_ids
ring = Keyring("k", {"k": bytes(32)})
ids = open_ids(sys.argv[1], most=10**6)
for i in range(10**6):
    receipts = [ring.sign(model="m", version="1", predicted=j, confidence=.5) for j in range(10)]
    batch = [Binding("m", f"{sys.argv[2]} {i} {j}", one) for j, one in enumerate(receipts)]
    ids.bind(batch)
    print(i, flush=True)
"""


def test_what_was_bound_survives_a_kill_at_any_moment(tmp_path):
    where = str(tmp_path / "ledger.db")
    for round_ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", BINDER, where, str(round_)], stdout=subprocess.PIPE, text=True
        )
        last = -1
        for _ in range(5 + 3 * round_):
            last = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        ids = open_ids(where, most=10**6)
        found = ids.find([f"{round_} {i} {j}" for i in range(last + 1) for j in range(10)])
        assert all(found)
        for j, one in enumerate(found[:10]):
            assert RING.verify(one["m"]).predicted == j
        beyond = ids.find([f"{round_} {last + 2} {j}" for j in range(10)])
        assert len({bool(one) for one in beyond}) == 1  # a batch is bound whole, or not at all
        ids.close()
