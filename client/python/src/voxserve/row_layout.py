"""Finds where the rows of a cloud begin. The C++ library and the server have the same rule in engine/base/row_step.h.

Drivers disagree about PointCloud2's row_step: it may be 0, the size of a point, or the size of the whole cloud. So the
rule looks at the number of bytes first:

1. Bytes for exactly num_points points are packed: the rows follow each other without gaps. row_step is not read.
2. Other clouds have padding after each row: row_step is more than the size of a row, and the bytes are `height` rows of
   row_step bytes, where the last row may lack its padding. A single row has less padding than a point: with more room,
   its number of points is likely wrong.
3. Every other cloud is refused. So is a cloud of 0 points that has bytes.
"""

from __future__ import annotations


def row_step_of(num_points: int, height: int, point_step: int, row_step: int, num_bytes: int) -> int:
    """Returns the number of bytes from one row of a cloud to the next. height: the number of rows; 0 means 1. row_step:
    what the cloud says, 0 if it says nothing. ValueError if the sizes do not fit together.
    """
    rows = max(1, height)
    width, rest = divmod(num_points, rows)
    if rest:
        raise ValueError(f"a height of {height} does not divide {num_points} points")
    if num_points and not point_step:
        raise ValueError(f"point_step is 0 for {num_points} points")
    packed = num_points * point_step
    row_bytes = width * point_step
    if num_bytes == packed:
        return row_bytes
    has_padding = num_points > 0 and row_step > row_bytes and (rows > 1 or row_step < row_bytes + point_step)
    if has_padding and num_bytes in (rows * row_step, (rows - 1) * row_step + row_bytes):
        return row_step
    in_rows = f" in {rows} rows" if rows > 1 else ""
    text = f"{num_points} points of {point_step} bytes{in_rows} take {packed} bytes"
    if has_padding:
        text += f", or {rows * row_step} with the row_step of {row_step}"
    raise ValueError(f"{text}, but there are {num_bytes}")
