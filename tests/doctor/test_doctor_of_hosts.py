"""``calib-serve doctor`` on hosts that are wrong: real ports, modes and folders, and a /proc of our own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from calib_serve.cli import app
from calib_serve.doctor import Asked, Finding, World, examine
from calib_serve.doctor.ports import ports
from calib_serve.receipts import Keyring
from calib_serve.watch.ledger import SqliteLedger

EXTRA = "kafka"  # what is imported for it takes no time


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["doctor", "--for", EXTRA, *map(str, arguments)])


HERE = World.here()


def found(world: World = HERE, **asked: object) -> dict[str, Finding]:
    order = ("ok", "note", "wrong")
    findings = examine(Asked(extras=(EXTRA,), **asked), world)  # type: ignore[arg-type]
    return {f.about: f for f in sorted(findings, key=lambda f: order.index(f.level))}


@pytest.fixture
def keyring(tmp_path: Path) -> Path:
    path = tmp_path / "keyring.json"
    Keyring.new().save(path)
    return path


@pytest.fixture
def mounted(tmp_path: Path) -> tuple[World, Path]:
    """A world whose mounts are those of its file, and that file."""
    file = tmp_path / "root" / "proc" / "self" / "mountinfo"
    file.parent.mkdir(parents=True)
    return replace(World.here(), root=tmp_path / "root"), file


def test_a_sound_host_ends_with_0_and_says_what_was_seen(keyring: Path) -> None:
    done = doctor("--keyring", keyring)
    assert done.exit_code == 0, done.output
    assert f"ok     keyring: {keyring}, for its owner alone" in done.output
    assert done.output.endswith(" 0 wrong\n")


def test_a_keyring_that_others_read_ends_with_1_and_the_command_that_mends_it(keyring: Path) -> None:
    keyring.chmod(0o644)
    done = doctor("--keyring", keyring)
    assert done.exit_code == 1
    assert f"wrong  keyring: {keyring} has mode 644: others may use its secrets" in done.output
    assert f"       do: chmod 600 {keyring}" in done.output


def test_json_has_every_finding(keyring: Path) -> None:
    keyring.chmod(0o644)
    done = doctor("--keyring", keyring, "--json")
    told = json.loads(done.output)
    assert told["wrong"] == 1
    (wrong,) = (one for one in told["findings"] if one["level"] == "wrong")
    assert wrong["about"] == "keyring"
    assert len(told["findings"]) == told["ok"] + told["note"] + told["wrong"]


def test_a_group_may_read_keys_where_the_environment_says_so(keyring: Path) -> None:
    keyring.chmod(0o640)
    assert found(keyring=keyring)["keyring"].level == "wrong"
    here = World.here()
    allowed = replace(here, environment={**here.environment, "CALIB_SERVE_GROUP_READS": "1"})
    assert found(allowed, keyring=keyring)["keyring"].level == "ok"


def test_keys_in_a_folder_of_anybodys_are_wrong(keyring: Path) -> None:
    keyring.parent.chmod(0o777)
    assert "lies in a folder that may be written by anybody" in found(keyring=keyring)["keyring"].what
    keyring.parent.chmod(0o1777)  # sticky, as /tmp
    assert found(keyring=keyring)["keyring"].level == "ok"


def test_a_keyring_that_is_not_there_is_made_by_a_command(tmp_path: Path) -> None:
    assert found(keyring=tmp_path / "k.json")["keyring"].do == f"calib-serve keys new {tmp_path / 'k.json'}"


def test_the_folder_of_a_server_and_all_in_it_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "serving"
    folder.mkdir(mode=0o700)
    for name in ("key_file.json", "keyring.json", "ledger.sqlite"):
        (folder / name).touch(mode=0o600)
    told = found(folder=folder)
    assert {told[name].level for name in ("folder", "key file", "keyring", "ledger")} == {"ok"}
    folder.chmod(0o755)
    (folder / "key_file.json").chmod(0o644)
    (folder / "ledger.sqlite").chmod(0o664)
    told = found(folder=folder)
    assert {told[name].level for name in ("folder", "key file", "ledger")} == {"wrong"}


def test_a_model_store_that_its_group_writes_is_wrong(tmp_path: Path) -> None:
    store = tmp_path / "model_store"
    store.mkdir()
    store.chmod(0o755)
    assert found(store=store)["model store"].level == "ok"
    store.chmod(0o775)
    assert "may be written by its group: an archive is code" in found(store=store)["model store"].what


def test_a_ledger_of_the_network_is_wrong(mounted: tuple[World, Path], tmp_path: Path) -> None:
    world, mounts = mounted
    path = tmp_path / "ledger.db"
    SqliteLedger(path).close()
    mounts.write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
    assert found(world, ledger=str(path))["ledger"].level == "ok"
    mounts.write_text(
        f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / {tmp_path} rw,relatime - nfs4 nas:/labels rw\n"
    )
    told = found(world, ledger=str(path))["ledger"]
    assert told.level == "wrong"
    assert f"lies on {tmp_path}, a nfs4 of the network" in told.what
    assert found(world, ledger=f"{path}?parts=2")["ledger"].level == "wrong"


def test_a_ledger_on_a_mount_that_is_read_only_is_wrong(mounted: tuple[World, Path], tmp_path: Path) -> None:
    world, mounts = mounted
    mounts.write_text(f"1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / {tmp_path} ro - ext4 b rw\n")
    assert "cannot both be written" in found(world, ledger=str(tmp_path / "ledger.db"))["ledger"].what


def test_a_mount_whose_name_has_a_blank_is_found(mounted: tuple[World, Path], tmp_path: Path) -> None:
    world, mounts = mounted
    folder = tmp_path / "net drive"
    folder.mkdir()
    point = str(folder).replace(" ", "\\040")
    mounts.write_text(f"1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / {point} rw - fuse.sshfs h:/ rw\n")
    assert found(world, ledger=str(folder / "ledger.db"))["ledger"].level == "wrong"
    assert found(world, ledger=str(tmp_path / "net drive.db"))["ledger"].level == "ok"


def test_a_database_is_not_asked() -> None:
    assert found(ledger="redis://10.255.255.1:6379/0")["ledger"].level == "note"


def test_temporary_files_that_cannot_be_run_are_a_note(mounted: tuple[World, Path], tmp_path: Path) -> None:
    world, mounts = mounted
    world = replace(world, environment={"TMPDIR": str(tmp_path)})
    mounts.write_text("1 0 8:1 / / rw,noexec - tmpfs a rw\n")
    assert "mounted noexec" in found(world)["temporary files"].what
    gone = replace(world, environment={"TMPDIR": str(tmp_path / "gone")})
    assert found(gone)["temporary files"].level == "wrong"


def test_root_is_told_and_another_user_is_well(mounted: tuple[World, Path]) -> None:
    assert found(replace(World.here(), user=0))["user"].level == "note"
    assert found(replace(World.here(), user=1000))["user"].level == "ok"


@pytest.mark.parametrize(("umask", "level"), [("0022", "ok"), ("0002", "ok"), ("0000", "note")])
def test_files_for_anybody_are_a_note(mounted: tuple[World, Path], umask: str, level: str) -> None:
    world, mounts = mounted
    mounts.with_name("status").write_text(f"Name:\tpython\nUmask:\t{umask}\nState:\tR\n")
    assert found(world)["umask"].level == level


def test_a_host_whose_open_files_are_used_up_is_wrong(mounted: tuple[World, Path]) -> None:
    world, _ = mounted
    used = world.root / "proc" / "sys" / "fs" / "file-nr"
    used.parent.mkdir(parents=True)
    used.write_text("99000\t0\t100000\n")
    assert found(world)["open files"].level == "wrong"


def test_few_open_files_are_a_note() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))\n"
        "from calib_serve.doctor import Asked, World\nfrom calib_serve.doctor.host import open_files\n"
        "print(*open_files(Asked(), World.here()), sep='\\n')"
    )
    told = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert "level='note'" in told
    assert "ulimit -n 512" in told


def test_a_port_that_is_taken_names_who_holds_it() -> None:
    program = (
        "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, "a-program-of-others"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        (taken,) = ports(Asked(extras=("watch",), port=port), World.here())
        other.communicate("")
    assert taken.level == "wrong"
    if sys.platform == "linux":
        assert f"is taken by process {other.pid}: {sys.executable}" in taken.what
    (free,) = ports(Asked(extras=("watch",), port=port), World.here())
    assert (free.level, free.what) == ("ok", f"free on this host: {port}")


def test_a_port_that_is_taken_by_a_server_of_ours_is_a_note() -> None:
    program = (
        "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, "calib-serve", "watch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None
        port = int(ours.stdout.readline())
        (taken,) = ports(Asked(extras=("watch",), port=port), World.here())
        ours.communicate("")
    assert taken.level == ("note" if sys.platform == "linux" else "wrong")


def test_the_ports_are_those_of_the_configuration(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        config = tmp_path / "config.properties"
        config.write_text(
            f"inference_address=https://127.0.0.1:{taken}/\ngrpc_inference_port=0\n"
            "management_address=unix:/tmp/management.sock\n"
        )
        told = list(ports(Asked(extras=("torch",), config=config), World.here()))
    assert [one.about for one in told if f"port {taken}" == one.about] == [f"port {taken}"]
    assert any("TorchServe's inference" in one.what for one in told)


def test_a_configuration_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    told = found(config=tmp_path / "gone.properties")["ports"]
    assert "could not be looked at: ServerError: cannot read" in told.what


def test_it_writes_nothing(keyring: Path, tmp_path: Path) -> None:
    (tmp_path / "serving").mkdir(mode=0o700)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    umask = os.umask(0o027)
    os.umask(umask)
    done = doctor("--keyring", keyring, "--ledger", tmp_path / "ledger.db", "--folder", tmp_path / "serving")
    assert done.exit_code == 0, done.output
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
