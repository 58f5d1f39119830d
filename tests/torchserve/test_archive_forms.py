"""Archives of others in every form that torch-model-archiver makes; none of them can harm us."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from live_server import temperature_artifact
from others_archives import FORMS, HANDLER, archived
from sizes import sized

from calib_serve import load_artifact
from calib_serve.core.errors import ModelError
from calib_serve.torchserve import pack_around, read_archive, stored_archives
from calib_serve.torchserve.archive._forms import MANIFEST

pytestmark = pytest.mark.server

TEXT = json.dumps({"runtime": "python", "model": {"modelName": "m", "modelVersion": "1", "handler": "h.py"}})


@pytest.mark.parametrize("form", sized(ci=["default", "tgz"], nightly=FORMS))
def test_each_form_is_read_and_packed_again(form: str, tmp_path: Path) -> None:
    old = archived(tmp_path / "store", form=form)
    found = read_archive(old)
    assert (found.name, found.version, found.model["handler"]) == ("pets", "3.1", "mine.py")
    assert found.files == (MANIFEST, "mine.py", "net.pt")
    assert found.read("mine.py").decode() == HANDLER
    assert stored_archives(tmp_path / "store") == [old]
    new = read_archive(
        pack_around(old, temperature_artifact(), tmp_path / "store", untried=True, unproven=True)
    )
    assert new.path.name == "pets-3.1-calibrated.mar"
    assert new.read("net.pt") == found.read("net.pt")
    assert load_artifact(new.path).fingerprint == temperature_artifact().fingerprint


def tgz(path: Path, *members: tuple[tarfile.TarInfo, bytes], end: bytes | None = None) -> Path:
    """A .tar.gz with a manifest and these members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member, content in ((tarfile.TarInfo(f"m/{MANIFEST}"), TEXT.encode()), *members):
            member.size = member.size or len(content)
            archive.addfile(member, io.BytesIO(content) if content else None)
        whole = archive.offset
    content = stream.getvalue() if end is None else stream.getvalue()[:whole] + end
    path.write_bytes(gzip.compress(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size
    return info


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (member("m/../../evil.py"), "leaves its folder"),
        (member("/etc/evil"), "leaves its folder"),
        (member("m/a\\evil"), "leaves its folder"),
        (member("m/link", tarfile.SYMTYPE, "/etc/passwd"), "link or a device"),
        (member("m/link", tarfile.LNKTYPE, f"m/{MANIFEST}"), "link or a device"),
        (member("m/pipe", tarfile.FIFOTYPE), "link or a device"),
        (member(f"other/{MANIFEST}"), "twice"),
        (member(f"m/./{MANIFEST}"), "twice"),
        (member("m/huge", size=200 << 30), "bomb"),
    ],
    ids=lambda value: value.name if isinstance(value, tarfile.TarInfo) else "",
)
def test_a_tar_that_could_harm_is_refused(bad: tarfile.TarInfo, says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=says):
        read_archive(tgz(tmp_path / "x.tar.gz", (bad, b"")))


def test_a_tar_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(member(f"m/{MANIFEST}", size=len(TEXT)), io.BytesIO(TEXT.encode()))
        archive.addfile(member("m/zeros", size=200 << 20), io.BytesIO(bytes(200 << 20)))
    with pytest.raises(ModelError, match="bomb"):
        read_archive(path)


def test_a_header_that_asks_for_all_memory_is_refused(tmp_path: Path) -> None:
    """A long name is read whole by the tar module, whatever its length."""
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
        path = tgz(tmp_path / "x.tar.gz", (member("m/long", kind, size=60 << 20), b""), end=bytes(61 << 20))
        tracemalloc.start()
        try:
            with pytest.raises(ModelError, match="header"):
                read_archive(path)
            assert tracemalloc.get_traced_memory()[1] < 40 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("end", [b"\xff" * 512, b"\xff" * 100, b"not a header" * 100])
def test_a_damaged_tar_does_not_lose_its_last_files_in_silence(end: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="damaged after"):
        read_archive(tgz(tmp_path / "x.tar.gz", end=end + bytes(1024)))


def test_a_tar_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = archived(tmp_path, form="tgz")
    whole = path.read_bytes()
    for share in (0.1, 0.5, 0.9, 0.99):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ModelError):
            read_archive(path)


def test_a_folder_holds_files_of_its_own_alone(tmp_path: Path) -> None:
    folder = archived(tmp_path / "store", form="no-archive")
    (tmp_path / "secret").write_text("key")
    (folder / "near").symlink_to("net.pt")
    assert read_archive(folder).read("near") == (folder / "net.pt").read_bytes()
    for target in (tmp_path / "secret", "../../secret", "nowhere", ".", "MAR-INF"):
        (folder / "link").symlink_to(target)
        with pytest.raises(ModelError, match="link or a device"):
            read_archive(folder)
        (folder / "link").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(ModelError, match="link or a device"):
        read_archive(folder)


@pytest.mark.parametrize(("written", "version"), [("1", "1"), ("1.0", "1.0"), ("1.10", "1.10"), ('"1"', "1")])
def test_a_version_is_what_is_written(written: str, version: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.mar", "w") as archive:
        archive.writestr(MANIFEST, '{"model": {"modelName": "m", "modelVersion": ' + written + "}}")
    assert read_archive(tmp_path / "x.mar").version == version
