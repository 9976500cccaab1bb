"""Decompresses LZF, the compression of PCD files (http://oldhome.schmorp.de/marc/liblzf.html)."""

from __future__ import annotations

# No data expands more: a match of three bytes, the most compact code, stands for at most 264 bytes.
MAX_EXPANSION = 264
_MAX_LITERALS = 32


def decompress(data: bytes | memoryview, size: int) -> bytes:
    """Returns exactly `size` bytes, or raises ValueError. It never makes many more bytes than that, whatever `data`
    contains.
    """
    if size > len(data) * MAX_EXPANSION:
        raise ValueError(f"{len(data)} compressed bytes cannot hold {size}")
    out = bytearray()
    position, end = 0, len(data)
    try:
        while position < end:
            control = data[position]
            position += 1
            if control < _MAX_LITERALS:
                length = control + 1
                if position + length > end:
                    raise ValueError("the compressed data ends within a run")
                out += data[position : position + length]
                position += length
            else:
                length = control >> 5
                if length == 7:
                    length += data[position]
                    position += 1
                start = len(out) - ((control & 31) << 8) - data[position] - 1
                position += 1
                length += 2
                if start < 0:
                    raise ValueError("the compressed data refers to what is before its beginning")
                chunk = out[start : start + length]
                while len(chunk) < length:  # the match overlaps its own output
                    chunk += chunk[: length - len(chunk)]
                out += chunk
            if len(out) > size:
                raise ValueError(f"the compressed data holds more than {size} bytes")
    except IndexError:
        raise ValueError("the compressed data ends within a match") from None
    if len(out) != size:
        raise ValueError(f"the compressed data holds {len(out)} bytes, not {size}")
    return bytes(out)
