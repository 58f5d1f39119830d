"""Keyrings: keys verify before they sign, are retired when nobody needs them, and their files are private."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest

from calib_serve.core.errors import KeyringError, Refused
from calib_serve.receipts import DAY, SKEW, Keyring, LiveKeyring


def at(when: float):
    return lambda: when


def signed(ring: Keyring) -> str:
    return ring.sign(model="m", version="1", predicted=1, confidence=0.5)


# --- keys ---------------------------------------------------------------------------------------


def test_an_added_key_verifies_and_the_first_one_signs_until_another_is_promoted() -> None:
    first = Keyring.new()
    more = first.extended()
    (fresh,) = set(more.keys) - set(first.keys)
    assert more.active == first.active
    promoted = more.promoted(fresh, clock=at(20.0))
    assert more.verify(signed(promoted)).key_id == fresh
    assert promoted.verify(signed(more)).key_id == first.active
    assert promoted.demoted == {first.active: 20.0}
    assert promoted.promoted(fresh, clock=at(30.0)) == promoted
    with pytest.raises(KeyringError, match="no key 'x'"):
        promoted.promoted("x")


def test_a_key_is_retired_once_no_label_of_its_receipts_is_accepted() -> None:
    first = Keyring.new()
    ring = first.rotated(clock=at(1e6))
    old = first.active
    assert ring.unneeded_from(old, ttl=DAY) == 1e6 + DAY + SKEW
    assert ring.unneeded_from(old) == 1e6 + 30 * DAY + SKEW
    assert ring.unneeded_from(ring.active) is None
    with pytest.raises(KeyringError, match="are accepted until"):
        ring.retired(old, clock=at(1e6 + 30 * DAY + SKEW))
    assert set(ring.retired(old, clock=at(1e6 + 30 * DAY + SKEW + 1)).keys) == {ring.active}
    with pytest.raises(KeyringError, match="accepted until after the year 9999"):
        ring.retired(old, ttl=1e300)
    with pytest.raises(KeyringError, match=r"accepted until 1970-01-13 13:52 UTC.*--early"):
        ring.retired(old, ttl=DAY, clock=at(1e6 + DAY + SKEW))
    assert set(ring.retired(old, ttl=DAY, clock=at(1e6 + DAY + SKEW + 1)).keys) == {ring.active}
    # A receipt of a clock that is ahead as far as it may be, on the last moment of the key.
    token = first.sign(model="m", version="1", predicted=1, confidence=0.5, time=1e6 + SKEW)
    assert ring.verify(token, now=1e6 + DAY + SKEW, ttl=DAY).key_id == old
    with pytest.raises(Refused, match="old"):
        ring.verify(token, now=1e6 + DAY + SKEW + 1, ttl=DAY)


def test_the_key_that_signs_and_one_that_may_sign_elsewhere_are_not_retired() -> None:
    ring = Keyring.new().extended()
    (fresh,) = set(ring.keys) - {ring.active}
    with pytest.raises(KeyringError, match="promote another before"):
        ring.retired(ring.active)
    with pytest.raises(KeyringError, match="may sign on another host"):
        ring.retired(fresh, clock=at(9e9))
    assert set(ring.retired(fresh, early=True).keys) == {ring.active}


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "format 2, which a newer calib-serve wrote; this one reads 1: upgrade it"),
        ({"times": {"old": {"demoted": "soon"}}}, "is not a keyring"),
        ({"times": {"old": {"demoted": float("nan")}}}, "is not a keyring"),
    ],
)
def test_a_file_of_another_format_or_with_other_times_is_said(
    change: dict[str, object], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    Keyring("old", {"old": bytes(32)}).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(KeyringError, match=said):
        Keyring.load(path)


def test_a_second_first_key_is_refused_and_makes_nothing_new(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "keys.json"
    with pytest.raises(KeyringError, match=f"keys new {re.escape(str(path))}"):
        Keyring.load(path)
    ring = Keyring.create(path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(KeyringError, match="would be lost"):
        Keyring.create(path)
    assert Keyring.load(path) == ring
    assert [p.name for p in path.parent.iterdir()] == ["keys.json"]


def test_a_change_waits_for_the_one_that_has_begun(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    Keyring.create(path)
    other = threading.Thread(target=Keyring.edit, args=(path, Keyring.extended))

    def extended(ring: Keyring) -> Keyring:
        other.start()
        other.join(0.2)
        return ring.extended()

    Keyring.edit(path, extended)
    other.join()
    assert len(Keyring.load(path).keys) == 3


# --- a ring that follows its file ---------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Keyring.create(tmp_path / "keys.json")
    return tmp_path / "keys.json"


def test_a_changed_file_is_read_within_a_second_and_an_unchanged_one_is_not(path: Path, clock: Clock) -> None:
    live = LiveKeyring(path, clock=clock)
    first = live.current()
    Keyring.edit(path, lambda ring: ring.rotated())
    clock.now = 0.99
    assert live.current() is first
    clock.now = 1.0
    second = live.current()
    assert second == Keyring.load(path) != first
    clock.now = 9.0
    assert live.current() is second


@pytest.mark.parametrize("spoil", ["{}", "cut", "missing", "0644"])
def test_a_broken_file_leaves_the_ring_as_it_was_and_says_so_until_it_is_mended(
    spoil: str, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[int] = []
    live = LiveKeyring(path, clock=clock, failed=lambda: failures.append(1))
    before, whole = live.current(), path.read_text()
    if spoil == "missing":
        path.unlink()
    elif spoil == "0644":
        path.chmod(0o644)
    else:
        path.write_text(whole[:40] if spoil == "cut" else spoil)
    for clock.now in (1.0, 1.5, 2.0, 3.0):
        assert live.current() is before
        assert "keys.json" in (live.trouble() or "")
    assert len(failures) == 3  # a try a second, and one line for all
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert json.loads(whole)["keys"][before.active] not in caplog.text
    path.write_text(whole)
    path.chmod(0o600)
    clock.now = 4.0
    assert live.current() == before
    assert live.trouble() is None


def test_an_unknown_key_is_looked_up_in_the_file_at_once(path: Path, clock: Clock) -> None:
    live = LiveKeyring(path, clock=clock)
    ring = Keyring.edit(path, lambda ring: ring.rotated())
    assert live.verify(signed(ring)).key_id == ring.active
    with pytest.raises(Refused) as refused:
        live.verify(signed(Keyring.new()))
    assert refused.value.reason == "unknown_key"


@pytest.mark.parametrize("changed", [False, True])
def test_a_ring_that_follows_its_file_verifies_by_the_time_and_the_age_it_is_given(
    changed: bool, path: Path, clock: Clock
) -> None:
    live = LiveKeyring(path, clock=clock)
    ring = Keyring.edit(path, Keyring.rotated) if changed else live.current()
    token = ring.sign(model="m", version="1", predicted=1, confidence=0.5, time=1e6)
    with pytest.raises(Refused, match="is 11 s old; labels are accepted for 10 s"):
        live.verify(token, now=1e6 + 11, ttl=10)
