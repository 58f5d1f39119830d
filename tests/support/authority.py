"""A certificate authority of our own, and a certificate that it signed for this host."""

from __future__ import annotations

import os
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

_CA = """basicConstraints=critical,CA:TRUE
keyUsage=critical,keyCertSign,cRLSign
subjectKeyIdentifier=hash
"""
_SITE = """subjectAltName=DNS:localhost,IP:127.0.0.1
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
authorityKeyIdentifier=keyid
subjectKeyIdentifier=hash
"""


@dataclass(frozen=True)
class Authority:
    """Files in PEM: the authority's certificate, and that of this host with its key."""

    ca: Path
    cert: Path
    key: Path

    @property
    def trusting(self) -> dict[str, str]:
        """The environment of a process that trusts it."""
        return {**os.environ, "SSL_CERT_FILE": str(self.ca)}

    @property
    def serving(self) -> ssl.SSLContext:
        """For a server of this host."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


def authority(folder: Path) -> Authority:
    """Make one, whose certificates are as strict as Python 3.13 wants them."""

    def openssl(*words: object) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)

    ca, cert, key = folder / "ca.pem", folder / "site.pem", folder / "site.key"
    asked, signs = folder / "site.csr", folder / "ca.key"
    (folder / "ca.cnf").write_text(f"[req]\ndistinguished_name=name\n[name]\n[ca]\n{_CA}")
    (folder / "site.ext").write_text(_SITE)
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    own = ("-config", folder / "ca.cnf", "-extensions", "ca", "-subj", "/CN=Authority of a test", "-days", 2)
    openssl("req", "-x509", *curve, *own, "-keyout", signs, "-out", ca)
    openssl("req", *curve, "-subj", "/CN=localhost", "-keyout", key, "-out", asked)
    by = ("-CA", ca, "-CAkey", signs, "-CAcreateserial", "-days", 2, "-extfile", folder / "site.ext")
    openssl("x509", "-req", "-in", asked, *by, "-out", cert)
    return Authority(ca, cert, key)
