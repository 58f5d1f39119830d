"""Files cut off, missing, with flipped bits, or of another kind: said, and never half believed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from injection import bytes_to_try
from ledgers import NOW, accept, ask, entries, make_label, sweep
from real_watch import make_watch
from sizes import sized
from small_models import archive, everything
from sqlalchemy.exc import IntegrityError

from calib_serve import Artifact
from calib_serve.core.errors import (
    ArtifactError,
    CalibServeError,
    LedgerError,
)
from calib_serve.ledger import Ledger
from calib_serve.receipts.samples import SampleLog, read_samples
from calib_serve.torchserve import artifact_of
from calib_serve.torchserve.archive._archive import read_archive

# --- artifacts --------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return everything().save(tmp_path / "artifact")


@settings(max_examples=sized(40, 600))
@given(st.data())
def test_one_flipped_bit_anywhere_is_noticed(tmp_path_factory: pytest.TempPathFactory, data) -> None:
    folder = everything().save(tmp_path_factory.mktemp("flip") / "artifact")
    path = folder / data.draw(st.sampled_from(["manifest.yaml", "params.safetensors"]))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        loaded = Artifact.load(folder)
    except ArtifactError:
        return
    assert loaded.fingerprint == everything().fingerprint  # only YAML's spelling changed, never its meaning


@pytest.mark.parametrize("name", ["manifest.yaml", "params.safetensors"])
def test_an_artifact_cut_off_anywhere_is_refused(saved: Path, name: str) -> None:
    content = (saved / name).read_bytes()
    # The last byte of a manifest is its last line's end, which means nothing.
    for keep in bytes_to_try(len(content) - 1, sized(20, 500)):
        (saved / name).write_bytes(content[:keep])
        with pytest.raises(ArtifactError):
            Artifact.load(saved)


# --- models and archives ----------------------------------------------------------------------


@settings(max_examples=sized(60, 2000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_an_archive_with_a_flipped_bit_is_refused_or_holds_what_was_packed(tmp_path: Path, seed: int) -> None:
    whole = tmp_path / "digits.mar"
    path = whole if whole.exists() else archive(tmp_path)
    rng, content = np.random.default_rng(seed), bytearray(path.read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    (tmp_path / "flipped.mar").write_bytes(content)
    try:
        found = read_archive(tmp_path / "flipped.mar")
    except CalibServeError:
        return
    was = read_archive(path)
    assert (found.name, found.version, found.model, found.files) == (
        was.name,
        was.version,
        was.model,
        was.files,
    )
    assert artifact_of(found).fingerprint == artifact_of(was).fingerprint


# --- the ledger -------------------------------------------------------------------------------


@pytest.mark.store
@pytest.mark.parametrize("seed", range(sized(3, 200)))
def test_a_damaged_ledger_is_said_and_counts_nothing_twice(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "copy.db"
    labels, rng = [make_label(i) for i in range(500)], np.random.default_rng(seed)
    with closing(Ledger(tmp_path / "l.db")) as ledger:
        accept(ledger, labels)
        ledger.roll_up()
        ledger.database.backup(path)  # which has no free page
    content = bytearray(path.read_bytes())
    at = int(rng.integers(len(content) - 4096))
    content[at : at + 4096] = rng.bytes(4096)
    path.write_bytes(content)
    try:
        with closing(Ledger(path)) as ledger:
            assert ledger.check(), "said by a whole look at it"
            assert "counted" not in ledger.accept(entries(labels))
    except LedgerError as error:
        assert_said(error, tmp_path)


@pytest.mark.store
def test_acknowledged_means_on_disk(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.db")
    with ledger.transaction() as connection:
        assert connection.exec_driver_sql("pragma synchronous").scalar() == 2  # FULL
    assert accept(ledger, [make_label(1)]) == [True]
    assert ask(str(tmp_path / "l.db"), "select count(*) from label") == [(1,)]
    ledger.close()


SPOILED = [
    "update tally set feedback = 'many'",
    "update tally set width = -1",
    "update label set confidence = 'high', predicted = 7",
    "update label set slices = 'no JSON'",
    "update label set receipt = 'no hex'",
    "update ledger set bins = 'some'",
    "insert into state values (1, 'detector', '', x'504b', 0)",
    "insert into state values (1, 'clause', 'a', x'5b', 0)",
    "insert into state values (1, 'shadow', '0a1b2c3d', x'7b7d', 0)",
]


@pytest.mark.store
@pytest.mark.parametrize("statement", SPOILED)
def test_values_spoiled_inside_a_sound_file_are_said_or_started_anew(tmp_path: Path, statement: str) -> None:
    watch = make_watch(tmp_path, maturity=1.0)
    accept(watch.ledger, [make_label(1, when=NOW - 60)])
    watch.ledger.roll_up()
    watch.ledger.close()
    with suppress(IntegrityError):  # then the database refuses it
        ask(str(tmp_path / "l.db"), statement)
    try:
        watch = make_watch(tmp_path, maturity=1.0)
    except LedgerError as error:
        assert_said(error, tmp_path)
        return
    for work in (
        watch.incidents,
        watch.ledger.sums,
        watch.ledger.followers.progress,
        lambda: accept(watch.ledger, [make_label(2)]),
        watch.feed.tick,
        lambda: watch.window(("m", "1"), "24h"),
        lambda: watch.window(("m", "1"), "all"),
        lambda: sweep(watch.ledger, NOW),
    ):
        with suppress_said(tmp_path):
            work()
    watch.ledger.close()


@contextmanager
def suppress_said(folder: Path) -> Iterator[None]:
    """Lets a LedgerError pass that names the file."""
    try:
        yield
    except LedgerError as error:
        assert_said(error, folder)


def assert_said(error: LedgerError, folder: Path) -> None:
    assert str(folder) in str(error)


# --- samples, keys, settings ------------------------------------------------------------------


def one_shard(folder: Path) -> Path:
    log = SampleLog(folder, rate=1.0)
    log.predicted("m", "1", [bytes(10), bytes(9) + b"1"], np.zeros((2, 2)), times=[0.0, 1.0])
    log.close()
    (shard,) = folder.iterdir()
    return shard


def test_a_damaged_shard_is_told_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shard = one_shard(tmp_path)
    other = tmp_path / shard.name.replace("predictions-0", "predictions-1")
    content = shard.read_bytes()
    for keep in bytes_to_try(len(content) - 1, sized(20, 1000)):
        other.write_bytes(content[:keep])
        caplog.clear()
        assert read_samples(tmp_path, model="m", version="1").predictions == 2
        assert caplog.text.count(f"{other} is damaged") == len(caplog.records) == 1
