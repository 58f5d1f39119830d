"""Bodies that no worker may choke on: (name, body, content type, status)."""

from __future__ import annotations

import io
import json
import struct
import zlib

import numpy as np

JSON = "application/json"
BYTES = "application/octet-stream"


def png(width: int, height: int, *, cut: int | None = None) -> bytes:
    """A grey PNG whose header claims ``width`` x ``height``; the pixels of one small row only."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\x00" + bytes(min(width, 64)) for _ in range(min(height, 64))))
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return whole[:cut]


def npy(array: np.ndarray, *, pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickle)
    return stream.getvalue()


def lying_npy() -> bytes:
    """A header that claims 16 TB."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2000000000000,), }"
    header += b" " * (118 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def lying_safetensors() -> bytes:
    return struct.pack("<Q", 1 << 60) + b'{"x": 1}'


GOOD = [[[0.25] * 4] * 4]

MATRIX: list[tuple[str, bytes, str, int]] = [
    ("wrong shape", json.dumps([1.0, 2.0]).encode(), JSON, 400),
    ("a batch in one request", json.dumps([GOOD, GOOD]).encode(), JSON, 400),
    ("ragged", b"[[[1,2],[3]]]", JSON, 400),
    ("strings", json.dumps([[["1.0"] * 4] * 4]).encode(), JSON, 400),
    ("null inside", json.dumps([[[None] * 4] * 4]).encode(), JSON, 400),
    ("null", b"null", JSON, 400),
    ("a number", b"7", JSON, 400),
    ("an object", b'{"x": 1}', JSON, 400),
    ("NaN", json.dumps([[[float("nan")] * 4] * 4]).encode(), JSON, 400),
    ("infinity", json.dumps([[[float("inf")] * 4] * 4]).encode(), JSON, 400),
    ("too large for float32", json.dumps([[[1e300] * 4] * 4]).encode(), JSON, 400),
    ("a very large integer", b"[[[" + b"9" * 5000 + b"]]]", JSON, 400),
    ("empty", b"", JSON, 400),
    ("an empty array", b"[]", JSON, 400),
    ("huge", json.dumps([0.5] * 500_000).encode(), JSON, 400),
    ("invalid JSON", b'{"data": [1,', JSON, 400),
    ("deep JSON", b"[" * 100_000 + b"]" * 100_000, JSON, 400),
    ("not UTF-8 JSON", b"\xff\xfe[1]", JSON, 400),
    ("truncated image", png(4, 4, cut=43), BYTES, 400),
    ("decompression bomb", png(60_000, 60_000), BYTES, 400),
    ("damaged image", png(4, 4).replace(b"IDAT", b"IDAX"), BYTES, 400),
    ("random bytes", bytes(range(256)) * 4, BYTES, 400),
    ("one zero byte", b"\x00", BYTES, 400),
    ("pickled npy", npy(np.array([{"a": 1}], dtype=object), pickle=True), BYTES, 400),
    ("lying npy", lying_npy(), BYTES, 400),
    ("npy of text", npy(np.array([[["a"] * 4] * 4])), BYTES, 400),
    ("lying safetensors", lying_safetensors(), BYTES, 400),
    ("text", "a cat, or 猫\u2028?".encode(), "text/plain", 400),
    ("a form", b"a=1&b=2", "application/x-www-form-urlencoded", 400),
    ("the model returns NaN", json.dumps([[[3e38] * 4] * 4]).encode(), JSON, 500),
]
