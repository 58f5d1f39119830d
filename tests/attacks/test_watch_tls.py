"""The watch server over TLS and over IPv6."""

from __future__ import annotations

import ssl
import subprocess
import warnings
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from stalling import IMPATIENT, watching

from calib_serve.core.errors import InputError
from calib_serve.web import serve_app

pytestmark = pytest.mark.server


def certificate(folder: Path, name: str = "a") -> tuple[str, str]:
    cert, key = str(folder / f"{name}.crt"), str(folder / f"{name}.key")
    curve = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    name_of = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1")
    command = ["openssl", "req", "-x509", "-newkey", *curve, *name_of]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def test_tls_is_1_2_or_later_by_ipv6_too_and_silent_clients_keep_nobody_waiting(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    pair = ("--tls-cert", cert, "--tls-key", key)
    with watching(tmp_path, *pair, limits=IMPATIENT) as served, ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(served.connect())  # no handshake
        trusting = ssl.create_default_context(cafile=cert)
        with httpx.Client(base_url=served.url, verify=trusting, timeout=60, trust_env=False) as client:
            assert client.get("/healthz").status_code == 200
            assert client.get("/metrics", headers={"host": "evil.example"}).status_code == 400
        assert served.counts()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)), served.connect() as peer:
            old.wrap_socket(peer)
        assert "Traceback" not in served.log.read_text()


@pytest.mark.parametrize("wrong", ["key of another", "no key", "encrypted"])
def test_a_certificate_that_does_not_serve_is_said(tmp_path: Path, wrong: str) -> None:
    cert, key = certificate(tmp_path)
    if wrong == "key of another":
        key = certificate(tmp_path, "b")[1]
    elif wrong == "encrypted":
        locked = ["openssl", "ec", "-in", key, "-aes128", "-passout", "pass:secret", "-out", f"{key}.locked"]
        subprocess.run(locked, check=True, capture_output=True)
        key = f"{key}.locked"
    with pytest.raises(InputError, match="certificate"):
        serve_app(FastAPI(), tls_cert=cert, tls_key=None if wrong == "no key" else key)
