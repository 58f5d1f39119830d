"""Bodies made to break a server, or the one beside them in a batch."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np
from attack_bytes import DEEP, FORGED, npy, npy_saying, png


def items() -> dict[str, bytes]:
    """Bodies of labels; each is also tried as predictions, and as what TorchServe hands on."""
    from real_watch import RING

    def token(n: int) -> str:
        return RING.sign(
            model="m",
            version="1",
            predicted=1,
            confidence=0.9,
            time=1_700_000_000.0,
            nonce=n.to_bytes(10, "big"),
        )

    def label(n: int, **more: Any) -> dict[str, Any]:
        return {"receipt": token(n), "label": 1, **more}

    def dump(*found: Any) -> bytes:
        return json.dumps({"items": list(found)}).encode()

    odd = [None, True, 1.5, -1, 3, 10**40, "", "one", "\ud800", FORGED, [], [[[]]], {}, {"a": 1}, "x" * 5000]
    deep = "[" * 800 + "]" * 800
    return {
        "good.json": dump(label(1), label(2, segment="north")),
        "twice in a batch.json": dump(label(3), label(3), label(3)),
        "odd labels.json": dump(*(label(100 + i, label=value) for i, value in enumerate(odd))),
        "odd ways to say it.json": dump(*(label(400 + i, by=value) for i, value in enumerate([*odd, "id"]))),
        "odd segments.json": dump(*(label(200 + i, segment=value) for i, value in enumerate(odd))),
        "odd receipts.json": dump(*({"receipt": value, "label": 1} for value in odd)),
        "odd items.json": dump(*odd),
        "odd keys.json": dump(*({**label(300 + i), str(key): 1} for i, key in enumerate(odd))),
        "surrogate as a key.json": b'{"items": [{"\\ud800": 1, "receipt": "x", "label": "\\udfff"}]}',
        "surrogate as a segment.json": dump(label(400, segment="\udcff")),
        "nul as a segment.json": dump(label(401, segment="\x00")),
        "segment of many letters.json": dump(label(402, segment="s" * 20_000)),
        "many segments.json": dump(*(label(500 + i, segment=f"s{i}") for i in range(60))),
        "nan and infinity.json": b'{"items": [{"receipt": NaN, "label": Infinity}, -Infinity]}',
        "1e999.json": b'{"items": [{"receipt": 1e999, "label": -1e999}]}',
        "huge integer.json": b'{"items": [' + b"9" * 5000 + b"]}",
        "integer of 4000 digits.json": dump(label(403, label=int("9" * 4000))),
        "doubled keys.json": b'{"items": [], "items": [{"receipt": "a", "receipt": "b", "label": 1}]}',
        "deep.json": b"[" * DEEP + b"]" * DEEP,
        "deep label.json": b'{"items": [{"receipt": "'
        + token(404).encode()
        + f'", "label": {deep}}}]}}'.encode(),
        "deep item.json": f'{{"items": [{deep}]}}'.encode(),
        "deep segment.json": f'{{"items": [{{"receipt": "x", "label": 1, "segment": {deep}}}]}}'.encode(),
        "items that is a text.json": b'{"items": "abc"}',
        "a number.json": b"7",
        "empty.json": b"",
        "not utf-8.json": b'{"items": ["\xff\xfe"]}',
        "utf-16.json": '{"items": []}'.encode("utf-16"),
        "utf-8 with a mark.json": b"\xef\xbb\xbf[]",
        "too many.json": b"[" + b"1," * 10_000 + b"1]",
        "unclosed.json": b'{"items": [1, 2',
        "crlf.ndjson": b'{"receipt": "a\\r\\nX-Evil: 1", "label": 1}\r\n\r\n{"label": 2}\r\n',
        "line separators.ndjson": '{"receipt": "a"}\u2028{"label": 2}\x85{"label": 3}\n'.encode(),
        "deep lines.ndjson": (b"[" * 5000 + b"\n") * 3,
        "odd lines.ndjson": b"\n\nnull\nNaN\n1e999\n{\n\xff\n" + b"9" * 5000 + b"\n",
    }


def served_items() -> dict[str, bytes]:
    """Bodies of predictions."""
    good = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}

    def dump(*found: Any) -> bytes:
        return json.dumps({"items": list(found)}).encode()

    odd = [None, True, 1.5, -1, 3, 2**32, 10**40, "", "\ud800", FORGED, [], {}, "x" * 5000]
    return {
        "good predictions.json": dump(good, {**good, "segment": "north", "logits": [1.0, 2.0, 3.0]}),
        **{
            f"odd {key}.json": dump(*({**good, key: value} for value in odd))
            for key in ("model", "version", "predicted", "confidence", "segment", "logits")
        },
        "odd logits inside.json": dump(*({**good, "logits": [value] * 3} for value in odd)),
        "logits beyond floats.json": b'{"items": [{"model": "m", "version": "1", "predicted": 1, '
        b'"confidence": 0.5, "logits": [1e999, NaN, -Infinity]}]}',
        "logits that are many.json": dump({**good, "logits": [0.5] * 10_000}),
        "confidence nan.json": b'[{"model": "m", "version": "1", "predicted": 1, "confidence": NaN}]',
        "confidence just above.json": dump({**good, "confidence": 1.0000000000000002}),
        "confidence that is denormal.json": dump({**good, "confidence": 5e-324}),
        "long unknown key.json": dump({**good, "k" * 50_000: 1}),
        "many unknown keys.json": dump({**good, **{f"k{i}": 1 for i in range(3000)}}),
        "forged names.json": dump({**good, "model": f'm"}} 1{FORGED}', "version": "1\n# HELP x"}),
    }


def bodies() -> dict[str, bytes]:
    """What TorchServe hands on: a matrix that the served isolation tests use too."""
    from hostile import MATRIX

    return {
        **{f"{name}.bin": content for name, content, *_ in MATRIX if len(content) < 300_000},
        "npy of the third version.bin": b"\x93NUMPY\x03\x00" + bytes(20),
        "npy header that is code.bin": npy_saying("__import__('os').mkdir('/tmp/calib-serve-was-owned')"),
        "npy header that is deep.bin": npy_saying("(" * 5000),
        "npy of negative size.bin": npy_saying("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}"),
        "npy of booleans for shape.bin": npy_saying(
            "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}", bytes(4)
        ),
        "npy with fields.bin": npy(np.zeros(4, [("a", "f4"), ("b", "O")]), pickled=True),
        "npy of no size.bin": npy_saying("{'descr': '<V0', 'fortran_order': False, 'shape': (4,)}"),
        "gif bomb.bin": b"GIF89a\xff\xff\xff\xff\x80\x00\x00"
        + bytes(6)
        + b",\x00\x00\x00\x00\xff\xff\xff\xff\x00",
        "tiff that loops.bin": b"II*\x00\x08\x00\x00\x00\x00\x00\x08\x00\x00\x00",
        "webp cut off.bin": b"RIFF\xff\xff\xff\xffWEBPVP8 ",
        "bmp of huge size.bin": b"BM"
        + bytes(12)
        + struct.pack("<IiiHH", 40, 1 << 30, 1 << 30, 1, 32)
        + bytes(24),
        "png that unpacks to much.bin": png(4, 4, body=zlib.compress(bytes(20 << 20))),
        "png text bomb.bin": png(4, 4)[:33]
        + struct.pack(">I", 5 + len(zlib.compress(bytes(20 << 20))))
        + b"zTXt"
        + b"key\x00\x00"
        + zlib.compress(bytes(20 << 20)),
    }
