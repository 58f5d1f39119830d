"""Files of logits, pictures, samples and tables made to break whoever reads them."""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from typing import Any

import numpy as np
from attack_bytes import Owned, npy, npy_saying, png, safetensors, zipped


def logits() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(6, 3)), np.arange(6) % 3

    def npz(**arrays: Any) -> bytes:
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        return stream.getvalue()

    lie = npy_saying("{'descr': '<f8', 'fortran_order': False, 'shape': (2000000000000,)}")
    return {
        "sound.npz": npz(cal_logits=z, cal_labels=y, logits=z, labels=y),
        "sound.npy": npy(z),
        "sound.csv": b"label,a,b,split\n0,1.5,2,cal\n1,2,1,cal\n",
        "sound.safetensors": safetensors(
            {"logits": {"dtype": "F64", "shape": [6, 3], "data_offsets": [0, 144]}}, z.tobytes()
        ),
        "object array.npz": zipped({"logits.npy": npy(np.array([Owned()], object), pickled=True)}),
        "object array.npy": npy(np.array([Owned()], object), pickled=True),
        "pickle.npy": pickle.dumps(Owned()),
        "pickle.npz": pickle.dumps(Owned()),
        "pickle inside.npz": zipped({"logits": pickle.dumps(Owned())}),
        "lying shape.npz": zipped({"logits.npy": lie}),
        "lying shape.npy": lie,
        "lying shape of 40 GB.npz": zipped(
            {"logits.npy": npy_saying("{'descr': '<f8', 'fortran_order': False, 'shape': (5000000000,)}")}
        ),
        "decompression bomb.npz": zipped({"logits.npy": npy(np.zeros((5_000_000, 2)))}),
        "one number.npy": npy(np.float64(3)),
        "one number.npz": npz(logits=3.0, labels=1),
        "an archive in disguise.npy": npz(logits=z),
        "an array in disguise.npz": npy(z),
        "texts.npz": npz(logits=np.array([["a", "b"]]), labels=[0]),
        "texts as probabilities.npz": npz(probs=np.array([["a", "b"]]), labels=[0]),
        "times.npz": npz(logits=np.array([["2020-01-01"]], "M8[D]"), labels=[0]),
        "complex.npz": npz(logits=z + 1j, labels=y),
        "fields.npz": npz(logits=np.zeros(4, [("a", "f4"), ("b", "f4")]), labels=[0] * 4),
        "four dimensions.npz": npz(logits=np.zeros((2, 2, 2, 2)), labels=[0, 1]),
        "no rows.npz": npz(logits=np.zeros((0, 3)), labels=[]),
        "class names of nothing.npz": npz(logits=z, labels=y, class_names=3),
        "torn.npz": npz(logits=z)[:150],
        "damaged deflate.npz": zipped({"logits.npy": npy(z)}).replace(b"\x93", b"\x00")[:300],
        "encrypted.npz": npz(logits=z).replace(b"PK\x01\x02\x14\x03", b"PK\x01\x02\x14\x03")[:-60]
        + npz(logits=z)[-60:].replace(b"PK\x01\x02", b"PK\x01\x02"),
        "header that is code.npy": npy_saying("__import__('os').mkdir('/tmp/calib-serve-was-owned')"),
        "header that is deep.npy": npy_saying("[" * 3000),
        "bfloat16.safetensors": safetensors(
            {"logits": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)
        ),
        "overlapping.safetensors": safetensors(
            {k: {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]} for k in ("logits", "labels")},
            bytes(8),
        ),
        "length beyond any file.safetensors": struct.pack("<Q", 1 << 62) + b"{}",
        "one field of many letters.csv": b"label,a,b\n" + b"0,1,2\n" * 3000 + b"0,1," + b"9" * 90_000 + b"\n",
        "nul.csv": b"label,a,b\n0,\x00,1\n",
        "not utf-8.csv": b"label,\xff,b\n0,1,2\n",
        "doubled columns.csv": b"label,a,a\n0,1,2\n",
        "quote that never ends.csv": b'label,a,b\n0,"1,2\n' * 3,
        "a header of many letters.csv": b"label," + b"h" * 20_000 + b",b\n0,1,2\n",
        "ragged.csv": b"label,a,b\n0,1\n0,1,2,3\n",
        "nan.csv": b"label,a,b\n0,nan,inf\n",
        "magic alone.parquet": b"PAR1PAR1",
        "footer length that lies.parquet": b"PAR1" + bytes(20) + b"\xff\xff\xff\x7fPAR1",
        **parquets(),
    }


def parquet(**columns: Any) -> bytes:
    """A table of these columns."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    stream = io.BytesIO()
    write_table(pa.table(columns), stream)
    return stream.getvalue()


def parquets() -> dict[str, bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    twice = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["a", "a"]), twice)
    return {
        "sound.parquet": parquet(label=[0, 1], a=[0.5, 1.5], b=[1.0, 2.0], split=["cal", "cal"]),
        "missing values.parquet": parquet(label=[0, None], a=[0.5, None], split=["cal", None]),
        "lists.parquet": parquet(label=[0], a=[[1.0, 2.0]]),
        "texts.parquet": parquet(label=[0], a=["x"]),
        "bytes.parquet": parquet(label=[0], a=[b"\xff"], split=[b"\xff"]),
        "times.parquet": parquet(label=[0], a=pa.array([0], pa.timestamp("ms"))),
        "doubled columns.parquet": twice.getvalue(),
        "no columns.parquet": parquet(),
        "a column of maps.parquet": parquet(label=[0], a=[{"x": 1}]),
    }


def calibration_sets() -> dict[str, bytes]:
    picks = ("object array", "lying shape", "one number", "pickle", "texts", "torn", "decompression bomb")
    arrays = {n: c.replace(b"logits", b"inputs") for n, c in logits().items() if n.startswith(picks)}
    return {
        **{name: content for name, content in arrays.items() if name.endswith((".npz", ".npy"))},
        "sound.png": png(4, 4),
        "bomb.png": png(60_000, 60_000),
        "large but not too large.png": png(13_000, 13_000),
        "cut off.png": png(4, 4)[:45],
        "no size.png": png(0, 0),
        "unpacks to much.png": png(4, 4, body=zlib.compress(bytes(20 << 20))),
        "pickle.png": pickle.dumps(Owned()),
        "postscript.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n(x) run\n",
        "outside.csv": b"file,label\n../../../etc/passwd,0\n",
        "absolute.csv": b"file,label\n/etc/passwd,0\n",
        "nul in a name.csv": b"file,label\na\x00.png,0\n",
        "a name of many letters.csv": b"file,label\n" + b"a" * 20_000 + b",0\n",
        "a label of many letters.csv": b"file,label\na.png," + b"9" * 20_000 + b"\n",
        "no label.csv": b"file,label\na.png\n",
        "field beyond the limit.csv": b"file,label\n" + b"a" * 140_000 + b",0\n",
        "not utf-8.csv": b"file,label\n\xff,0\n",
        "empty.csv": b"",
    }


def texts() -> dict[str, bytes]:
    return {
        "empty.csv": b"",
        "sound.csv": b"receipt,label,segment\nabc,1,north\n",
        "field beyond the limit.csv": b"receipt,label\n" + b"a" * 140_000 + b",1\n",
        "not utf-8.csv": b"receipt,label\n\xff,1\n",
        "nul.csv": b"receipt,label\n\x00,1\n",
        "no columns.csv": b"a,b\n1,2\n",
        "short row.csv": b"receipt,label\nabc\n",
        "long row.csv": b"receipt,label\nabc,1,2,3\n",
        "column twice.csv": b"receipt,label,label\nabc,1,2\n",
        "label of many letters.csv": b"receipt,label\nabc," + b"9" * 20_000 + b"\n",
        "odd digits.csv": "receipt,label\nabc,\u0661\u0662\nabc,\u00b2\n".encode(),
        **{f"logits, {n}": c for n, c in logits().items() if n.endswith(".parquet")},
    }


def labelled_texts() -> dict[str, bytes]:
    import pyarrow as pa

    row = b'{"text": "a", "label": 1}'
    return {
        "sound.jsonl": row + b'\n{"text": "b", "text_pair": "c", "label": ["x", "y"], "split": "cal"}',
        "sound.csv": b"text,label,split\na,0,cal\nb,1,test\n",
        "deep.jsonl": b'{"text": ' + b"[" * 100_000,
        "deep after sound.jsonl": row + b"\n" + b'{"a":' * 50_000,
        "a label of many digits.jsonl": b'{"text": "a", "label": ' + b"9" * 6000 + b"}",
        "half a character.jsonl": b'{"text": "\\ud800", "label": "\\udfff"}',
        "half a character in a label.jsonl": b'{"text": "a", "label": "\\udfff"}',
        "twice.jsonl": b'{"text": "a", "text": "b", "label": 1}',
        "infinite.jsonl": b'{"text": "a", "label": Infinity}',
        "a list.jsonl": b"[1, 2]",
        "no newline and no end.jsonl": row[:-1],
        "utf-16.jsonl": row.decode().encode("utf-16"),
        "nul.csv": b"text,label\n\0,1\n",
        "text beyond the limit.csv": b"text,label\n" + b"a" * 200_000 + b",1\n",
        "quote that never ends.csv": b'text,label\n"a,1\n' * 3,
        "doubled columns.csv": b"text,label,label\na,1,2\n",
        "ragged.csv": b"text,label\na,b,1\n",
        "no rows.csv": b"text,label\n",
        "magic alone.parquet": b"PAR1PAR1",
        "footer length that lies.parquet": b"PAR1" + bytes(20) + b"\xff\xff\xff\x7fPAR1",
        "sound.parquet": parquet(text=["a", "b"], label=[["x"], []]),
        "missing values.parquet": parquet(text=["a", None], label=[0, None]),
        "bytes.parquet": parquet(text=[b"\xff"], label=[0]),
        "times.parquet": parquet(text=["a"], label=pa.array([0], pa.timestamp("ms"))),
        "maps.parquet": parquet(text=["a"], label=[{"x": 1}]),
    }


def shards() -> dict[str, bytes]:
    from readers import scratch

    from calib_serve.watch.samples import SampleLog

    with scratch() as folder:
        log = SampleLog(folder, rate=1.0)
        log.predicted("m", "1", [bytes(12)], np.zeros((1, 3)), times=[0.0])
        log.close()
        (shard,) = folder.iterdir()
        sound = shard.read_bytes()

    def npz(**arrays: Any) -> bytes:
        stream = io.BytesIO()
        np.savez(stream, **{"model": "m", "version": "1", "nonce": np.zeros((1, 12), np.uint8), **arrays})
        return stream.getvalue()

    return {
        "sound.npz": sound,
        "labels of texts.npz": npz(label=np.array(["a"])),
        "labels beyond integers.npz": npz(label=np.array([2**64 - 1], np.uint64)),
        "labels that are nan.npz": npz(label=np.array([np.nan])),
        "logits of one dimension.npz": npz(time=[0.0], logits=np.zeros(1)),
        "logits of texts.npz": npz(time=[0.0], logits=np.array([["a"]])),
        "times of texts.npz": npz(time=np.array(["a"]), logits=np.zeros((1, 3))),
        "nonce of one number.npz": npz(nonce=3, label=[1]),
        "fewer nonces.npz": npz(nonce=np.zeros((0, 12), np.uint8), time=[0.0], logits=np.zeros((1, 3))),
        "no model.npz": npz(model=np.array([["m"]])),
    }
