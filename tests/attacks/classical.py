"""Writes the classical attacks into the corpus: python tests/attacks/classical.py

Each is one idea that broke some program once: bombs, lying lengths, paths that leave their folder,
pickles, numbers out of reach, nesting, doubled names. What fuzzing found lies beside them.
"""

from __future__ import annotations

import io
import pickle
import sqlite3
import struct
import sys
from pathlib import Path
from typing import Any

from attack_bytes import DEEP, Owned
from attacks_on_archives import mar_manifests, mars, model_configs
from attacks_on_artifacts import contracts, keyrings, manifests, params, receipts
from attacks_on_data import calibration_sets, labelled_texts, logits, shards, texts
from attacks_on_graphs import graphs
from attacks_on_servers import bodies, items, served_items

SUPPORT = Path(__file__).parents[1] / "support"
CORPUS = Path(__file__).parent / "corpus"


def settings() -> dict[str, bytes]:
    return {
        "sound.properties": b"a=1\n# why\nload_models=none\n",
        "not utf-8.properties": b"a=\xff\n",
        "nul.properties": b"a=\x00\n\x00=1\n",
        "line separators.properties": "a=1\u2028load_models=all\x85enable_model_api=true\x0cb=2\n".encode(),
        "carriage returns.properties": b"a=1\rload_models=all\r",
        "no keys.properties": b"=\n==\n=1\n",
        "doubled keys.properties": b"load_models=all\nload_models=all\n",
        "indented.properties": b"  load_models=all\n\tload_models = all\n  # load_models=x\n",
        "continued.properties": b"load_\\\nmodels=all\n",
    }


def ledgers() -> dict[str, bytes]:
    from ledgers import accept, make_label
    from readers import scratch

    from calib_serve.watch.ledger import SqliteLedger

    endless_view = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i FROM r) SELECT i FROM r"
    with scratch() as folder:
        book = SqliteLedger(folder / "l.db")
        accept(book, [make_label(i) for i in range(3)])
        book.close()
        sound = (folder / "l.db").read_bytes()
        db = sqlite3.connect(folder / "evil.db")
        db.execute("CREATE TABLE state (key, value)")
        db.execute("CREATE TABLE sums AS SELECT 1")
        for table in ("nonces", "epochs", "waiting"):
            db.execute(f"CREATE VIEW {table} AS {endless_view}")
        db.commit()
        db.close()
        evil = (folder / "evil.db").read_bytes()
    return {
        "sound.db": sound,
        "cut off.db": sound[:5000],
        "views for tables.db": evil,
        "empty.db": b"",
        "a text.db": b"hello " * 500,
        "header alone.db": sound[:100],
    }


def detectors() -> dict[str, bytes]:
    from calib_serve.watch.drift import Detector

    detector = Detector(arl=1000.0)
    detector.update([0.5, 0.9, 0.7], [True, False, True])
    state = detector.state()
    return {
        "sound.bin": state,
        "cut off.bin": state[: len(state) // 2],
        "empty.bin": b"",
        "no body.bin": state.partition(b"\n")[0],
        "bins beyond memory.bin": state.replace(b"15", b"1500000000000", 1),
        "more groups than bytes.bin": state.replace(b'"groups": 0', b'"groups": 4096'),
        "groups below zero.bin": state.replace(b'"groups": 0', b'"groups": -1'),
        "classes that are none.bin": state.replace(b'"classes": []', b'"classes": [null]'),
        "deep.bin": b"[" * DEEP,
        "pickle.bin": pickle.dumps(Owned()),
    }


def tokens() -> dict[str, bytes]:
    return {
        "sound.txt": b"0123456789abcdef\n",
        "short.txt": b"a\n",
        "empty.txt": b"",
        "not utf-8.txt": b"\xff" * 20,
        "line separators.txt": "0123456789abcdef\u2028x\n".encode(),
    }


def models_lists() -> dict[str, bytes]:
    numbers = b'[{"name": "m", "version": "1", "classes": 2, "class_names": [1, 2]}]'
    return {
        "sound.json": b'[{"name": "m", "version": "1", "classes": 3}]',
        "deep.json": b"[" * DEEP,
        "a map.json": b'{"a": 1}',
        "odd classes.json": b'[{"name": 1, "version": 2, "classes": 1e999}]',
        "names that are numbers.json": numbers,
        "empty.json": b"",
        "not utf-8.json": b"\xff",
    }


def weights() -> dict[str, bytes]:
    import torch
    from safetensors.torch import save

    def saved(value: Any) -> bytes:
        stream = io.BytesIO()
        torch.save(value, stream)
        return stream.getvalue()

    sound = {"0.weight": torch.zeros(3, 4), "0.bias": torch.zeros(3)}
    return {
        "sound.pt": saved(sound),
        "pickle in torch.pt": saved({"0.weight": Owned()}),
        "pickle.pt": pickle.dumps(Owned()),
        "sound.safetensors": save(sound),
        "other names.safetensors": save({"x": torch.zeros(3)}),
        "state_dict that is a tensor.safetensors": save({"state_dict": torch.zeros(3)}),
        "a list.pt": saved([1, 2]),
        "a number.pt": saved(7),
        "empty.pt": b"",
        "length beyond any file.safetensors": struct.pack("<Q", 1 << 62) + b"{}",
    }


def every_attack() -> dict[str, dict[str, bytes]]:
    """Reader (or several, with + between) -> name -> content."""
    return {
        "manifest": manifests(),
        "params": params(),
        "contract": contracts(),
        "receipt": receipts(),
        "mar": mars(),
        "mar_manifest": mar_manifests(),
        "model_config": model_configs(),
        "labels+predictions+body": items(),
        "predictions": served_items(),
        "body": bodies(),
        "logits+samples+checkpoint": {n: c for n, c in logits().items() if n.endswith(".npz")},
        "logits": {n: c for n, c in logits().items() if not n.endswith(".npz")},
        "data": calibration_sets(),
        "labelled_texts": labelled_texts(),
        "keyring": keyrings(),
        "properties": settings(),
        "labels_file": texts(),
        "onnx": graphs(),
        "ledger": ledgers(),
        "detector": detectors(),
        "samples": shards(),
        "tokens": tokens(),
        "models_list": models_lists(),
        "weights": weights(),
    }


def main() -> None:
    """Write them all."""
    count = size = 0
    for reader, attacks in every_attack().items():
        (CORPUS / reader).mkdir(parents=True, exist_ok=True)
        for name, content in attacks.items():
            (CORPUS / reader / name.replace(" ", "-").replace(",", "")).write_bytes(content)
            count, size = count + 1, size + len(content)
    print(f"{count} files, {size >> 10} KiB")


if __name__ == "__main__":
    sys.path.append(str(SUPPORT))
    main()
