"""The LZF decoder, tested with an encoder and with damaged streams."""

from __future__ import annotations

import numpy as np
import pytest
from lzf_encoder import lzf_encode

from voxserve.readers import lzf


def test_lzf_matches_that_overlap_what_they_make() -> None:
    # "ab", then a back reference in the long form (7 << 5, length - 9, distance - 1): 9 bytes from 2 bytes back.
    assert lzf.decompress(b"\1ab" + bytes([7 << 5, 0, 1]), 11) == b"ababababababab"[:11]
    assert lzf.decompress(b"\0a" + bytes([1 << 5, 0]), 4) == b"aaaa"


def test_lzf_against_an_encoder() -> None:
    rng = np.random.default_rng(3)
    data = bytes(rng.integers(0, 3, 5000, dtype=np.uint8)) + bytes(rng.integers(0, 256, 500, dtype=np.uint8))
    assert lzf.decompress(lzf_encode(data), len(data)) == data


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        (b"\1a", 2, "ends within a run"),
        (b"\0a\x20", 4, "ends within a match"),
        (b"\0a\xe0\0", 4, "ends within a match"),
        (b"\0a\x20\5", 4, "before its beginning"),
        (b"\0a", 2, "holds 1 bytes, not 2"),
        (b"\1ab", 1, "more than 1 bytes"),
        (b"\0a", 10**12, "cannot hold"),
    ],
)
def test_lzf_that_is_damaged(data: bytes, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lzf.decompress(data, size)
