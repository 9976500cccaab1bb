"""Encodes LZF, for the test files of the readers and the tests of the decoder."""

from __future__ import annotations


def lzf_literals(data: bytes) -> bytes:
    """Encodes without back references: in literal runs of up to 32 bytes."""
    runs = [data[i : i + 32] for i in range(0, len(data), 32)]
    return b"".join(bytes([len(run) - 1]) + run for run in runs)


def lzf_encode(data: bytes) -> bytes:
    """Encodes greedily with back references, following the format's description."""
    out, literals, position = bytearray(), bytearray(), 0
    while position < len(data):
        start = data.rfind(data[position : position + 3], max(0, position - 8191), position + 2)
        length = 0
        if 0 <= start < position and position + 3 <= len(data):
            while length < 264 and position + length < len(data) and data[start + length] == data[position + length]:
                length += 1
        if length >= 3:
            out += lzf_literals(bytes(literals))
            literals.clear()
            distance = position - start - 1
            if length < 9:
                out += bytes([(length - 2) << 5 | distance >> 8, distance & 255])
            else:
                out += bytes([7 << 5 | distance >> 8, length - 9, distance & 255])
            position += length
        else:
            literals.append(data[position])
            position += 1
    return bytes(out + lzf_literals(bytes(literals)))
