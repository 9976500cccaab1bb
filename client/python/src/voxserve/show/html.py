"""The HTML of answers in notebooks: a picture, beside it a table of the classes. All texts are escaped."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence

from voxserve.show.picture import Colour, Picture

_MAX_ROWS = 16


def of_answer(caption: str, picture: Picture | None, rows: Sequence[tuple[str, Colour, str]], note: str = "") -> str:
    """Returns HTML. rows: the name, the colour and the number of each class; after 16 of them the number of the others
    stands. note: a line below the table.
    """
    cells = []
    for name, (red, green, blue), number in rows[:_MAX_ROWS]:
        swatch = f'<span style="background:#{red:02x}{green:02x}{blue:02x}">&emsp;</span>'
        cells.append(f"<tr><td>{swatch} {html.escape(name)}</td><td>{html.escape(number)}</td></tr>")
    if len(rows) > _MAX_ROWS:
        cells.append(f"<tr><td>{len(rows) - _MAX_ROWS} more</td><td></td></tr>")
    image = ""
    if picture is not None:
        source = base64.b64encode(picture.png()).decode()
        image = f'<td style="vertical-align:top"><img alt="from above" src="data:image/png;base64,{source}"></td>'
    table = f"<table>{''.join(cells)}</table>" if cells else ""
    foot = f"<p>{html.escape(note)}</p>" if note else ""
    return (
        f"<p>{html.escape(caption.strip('<>'))}</p><table><tr>{image}"
        f'<td style="vertical-align:top">{table}{foot}</td></tr></table>'
    )
