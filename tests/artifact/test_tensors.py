"""The reader by hand reads what the library writes, and refuses what the library refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load, save

from calib_serve.artifact.tensors import read_plainly

arrays = hnp.arrays(
    st.sampled_from(["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u1", "?"]).map(np.dtype),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
)


@settings(deadline=None)
@given(tensors=st.dictionaries(st.text(min_size=1, max_size=5).filter(str.isidentifier), arrays, max_size=4))
def test_it_reads_what_the_library_writes(tensors: dict[str, np.ndarray]) -> None:
    raw = save(tensors)
    mine, theirs = read_plainly(raw), load(raw)
    assert mine.keys() == theirs.keys()
    for name, array in theirs.items():
        assert mine[name].dtype == array.dtype
        assert mine[name].shape == array.shape
        assert mine[name].tobytes() == array.tobytes()


@settings(deadline=None)
@given(at=st.integers(0, 200), bit=st.integers(0, 7), cut=st.integers(0, 300))
def test_damaged_bytes_are_a_value_error_or_another_array(at: int, bit: int, cut: int) -> None:
    raw = bytearray(save({"x": np.arange(12, dtype=np.float32), "y": np.zeros((2, 3))}))
    raw[at % len(raw)] ^= 1 << bit
    for damaged in (bytes(raw), bytes(raw[:cut])):
        try:
            found = read_plainly(damaged)
        except ValueError:
            continue
        assert all(isinstance(array, np.ndarray) for array in found.values())


@pytest.mark.parametrize(
    "raw", [b"", b"\x00" * 8, b"\xff" * 16, b"\x02" + bytes(7) + b"[]", b"\x04" + bytes(7) + b"null"]
)
def test_what_is_no_safetensors_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_plainly(raw)
