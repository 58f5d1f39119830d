"""A label journal whose disk is full, whose process is killed, or that several processes write."""

import os
import signal
import subprocess
import sys
import time

import pytest
from injection import Fault, under
from ledgers import entries, make_label
from real_watch import RING, make_watch, talk_to
from sizes import sized

from calib_serve.errors import LedgerError
from calib_serve.watch.journal import LabelJournal, read_journal
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.revoke import revoke

pytestmark = pytest.mark.store

V = ("m", "1")


def labels(count, start=0):
    facts = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9, "time": time.time() - 5}
    return [
        {"receipt": RING.sign(**facts, nonce=i.to_bytes(10, "big")), "label": 1}
        for i in range(start, start + count)
    ]


def write(journal, ledger, start, count):
    sent = entries([make_label(i) for i in range(start, start + count)])
    with journal.writing():
        return journal.count(sent, lambda mark: ledger.accept(sent, mark=mark))


def test_processes_write_side_by_side_and_a_slot_is_taken_over(tmp_path):
    ledger = SqliteLedger(tmp_path / "l.db")
    one, two = LabelJournal(tmp_path / "j", ledger), LabelJournal(tmp_path / "j", ledger)
    write(one, ledger, 0, 2), write(two, ledger, 2, 2), write(one, ledger, 4, 2)
    one.close()
    again = LabelJournal(tmp_path / "j", ledger)
    write(again, ledger, 6, 2)
    assert {path.name[:9] for path in (tmp_path / "j").glob("*.ndjson")} == {"labels-00", "labels-01"}
    assert sum(one.fates == "cc" for one in read_journal(tmp_path / "j")) == 4
    two.close(), again.close(), ledger.close()


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_half_a_line_at_the_end_spoils_nothing(tmp_path, cut):
    ledger = SqliteLedger(tmp_path / "l.db")
    journal = LabelJournal(tmp_path / "j", ledger)
    write(journal, ledger, 0, 3), write(journal, ledger, 3, 3)
    journal.close()
    (path,) = (tmp_path / "j").glob("*.ndjson")
    path.write_bytes(path.read_bytes()[:-cut])
    again = LabelJournal(tmp_path / "j", ledger)
    write(again, ledger, 6, 3)
    fates = [one.fates for one in read_journal(tmp_path / "j")]
    assert fates == ["ccc"] * 3
    again.close(), ledger.close()


def serve_until_full(folder):
    """How many batches were counted before the first that was not, its answer, and what came then."""
    ledger = SqliteLedger(folder.parent / "l.db")
    watch = make_watch(folder.parent, journal=LabelJournal(folder / "j", ledger, max_bytes=30_000))
    statuses = []
    with talk_to(watch) as client:
        while 503 not in statuses and len(statuses) < 100:
            batch = labels(50, 50 * len(statuses))
            statuses.append(client.post("/v1/labels", json=batch).status_code)
        counted = watch.ledger.sums()[V].labels.sum()
        min((folder / "j").glob("*.ndjson")).unlink()  # room again
        again = client.post("/v1/labels", json=batch).json()["accepted"]
    watch.close(), ledger.close()
    letters = "".join(one.fates for one in read_journal(folder / "j"))
    return statuses.count(200), statuses[-1], counted, again, set(letters)


def test_a_journal_that_cannot_be_written_is_503_and_counts_nothing(tmp_path):
    (tmp_path / "small").mkdir()
    ended = under(Fault(disk=(tmp_path / "small", 100_000)), serve_until_full, tmp_path / "small")
    assert ended.well, ended
    fine, full, counted, again, fates = ended.result
    assert fine > 0
    assert (full, counted, again, fates) == (503, 50 * fine, 50, {"c"})


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_label_journal import labels
from real_watch import make_watch
from calib_serve.watch.journal import LabelJournal
from calib_serve.watch.ledger import SqliteLedger
folder, start = Path(sys.argv[1]), int(sys.argv[2])
watch = make_watch(folder)
watch.intake._journal = LabelJournal(folder / "j", watch.ledger)
watch.labels(labels(20, start), source="a")
print("ready", flush=True)
for at in range(start + 20, start + 100_000, 20):
    watch.labels(labels(20, at), source="a")
"""


def test_killed_at_any_moment_the_journal_says_what_was_counted(tmp_path):
    code = WRITER.format(path=[one for one in sys.path if "tests" in one])
    for round_ in range(sized(ci=3, nightly=40)):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), str(round_ * 1_000_000)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.2 + 0.13 * round_ % 0.5)
            os.kill(process.pid, signal.SIGKILL)
        ledger = SqliteLedger(tmp_path / "l.db")
        counted = ledger.sums()[V].labels.sum()
        assert revoke(ledger, tmp_path / "j", source="a", dry_run=True).labels == {V: counted}
        ledger.close()
    ledger = SqliteLedger(tmp_path / "l.db")
    revoke(ledger, tmp_path / "j", source="a")
    assert ledger.sums()[V].labels.sum() == 0
    ledger.close()


def test_a_revocation_that_breaks_off_goes_on_where_it_was(tmp_path):
    ledger = SqliteLedger(tmp_path / "l.db")
    journal = LabelJournal(tmp_path / "j", ledger)
    for i in range(5):
        sent = entries([make_label(10 * i + k) for k in range(10)])
        with journal.writing():
            journal.count(
                [one.__class__(one.label, one.arrived, one.slices, "a") for one in sent],
                lambda mark, sent=sent: ledger.accept(sent, mark=mark),
            )
    real, calls = ledger.take_back, []

    def fails(rows, **more):
        calls.append(1)
        if len(calls) == 3:
            raise LedgerError("gone")
        return real(rows, **more)

    ledger.take_back = fails
    with pytest.raises(LedgerError):
        revoke(ledger, tmp_path / "j", source="a")
    assert ledger.sums()[V].labels.sum() == 30
    told = revoke(ledger, tmp_path / "j", source="a")
    assert (told.labels, told.before, ledger.sums()[V].labels.sum()) == ({V: 30}, 20, 0)
    journal.close(), ledger.close()
