"""``calib-serve keys``: what each verb does, refuses and shows."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from command_line import Done, calib_serve

from calib_serve.receipts import Keyring

DAY = 86_400.0


def keys(*arguments: object) -> Done:
    return calib_serve("keys", *arguments)


def listed(path: Path, *more: str) -> dict[str, dict[str, object]]:
    return {row["key"]: row for row in json.loads(keys("list", path, "--json", *more).output)}


def test_a_key_goes_from_added_to_promoted_to_retired(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    assert " signs\n" in keys("new", path).output
    old = Keyring.load(path).active
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert f"{old} signs; " in keys("add", path).output
    (new,) = set(listed(path)) - {old}
    assert listed(path)[new] == {"key": new, "signs": False, "demoted": None, "retire_from": None}
    assert keys("promote", path, "--key", new).output == f"{path}: {new} signs; {old} verify\n"
    row = listed(path, "--ttl-days", "2")[old]
    assert row["retire_from"] == row["demoted"] + 2 * DAY + 300
    refused = keys("retire", path, "--key", old)
    assert refused.exit_code == 3
    assert "are accepted until" in refused.stderr
    assert set(Keyring.load(path).keys) == {old, new}
    assert keys("retire", path, "--key", old, "--early").output == f"{path}: {new} signs\n"
    assert set(Keyring.load(path).keys) == {new}


def test_no_verb_shows_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    shown = [keys("new", path), keys("add", path), keys("rotate", path)]
    shown += [keys("list", path), keys("list", path, "--json"), keys("retire", path, "--key", "x")]
    shown += [keys("retire", path, "--key", Keyring.load(path).active), keys("new", path)]
    text = "".join(one.output for one in shown)
    for secret in json.loads(path.read_text())["keys"].values():
        assert secret[:12] not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("retire",), "--key"),
        (("new", "--from", "x"), "--from"),
    ],
)
def test_options_of_other_verbs_are_refused(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    verb, *options = arguments
    refused = keys(verb, tmp_path / "keys.json", *options)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert not list(tmp_path.iterdir())
