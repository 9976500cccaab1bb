"""Settings of Sphinx for the API reference; tools/build_reference.sh builds it, with every warning an error.

Docstrings of this package are plain text: a line "name: text" describes an argument, with further lines indented. They
become reStructuredText here.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

project = "voxserve"
author = "The voxserve authors"
version = release = (Path(__file__).resolve().parents[1] / "VERSION").read_text(encoding="utf-8").strip()
extensions = ["sphinx.ext.autodoc"]
html_theme = "alabaster"
html_theme_options = {
    "page_width": "1100px",
    "sidebar_width": "240px",
    "description": "Python API",
    "fixed_sidebar": True,
}
html_copy_source = False
default_role = "literal"  # `name` in a docstring is code
nitpicky = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"PointsLike": "PointsLike", "Fields": "Fields"}
maximum_signature_line_length = 100

# "name: text" or "one, other: text", at the left edge of a docstring.
_ARGUMENT = re.compile(r"((?:\w+, )*\w+): +(.*)")


def _parameters_of(thing: Any) -> set[str]:
    try:
        return set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return set()


def _escaped(text: str) -> str:
    """Returns the text without meaning to reStructuredText, but for `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    plain = [re.sub(r"([*|\\])|_(?=\W|$)", lambda found: "\\" + found[0], part) for part in parts[::2]]
    return "".join(text for pair in zip(plain, [*parts[1::2], ""], strict=True) for text in pair)


def _convert(_app: Any, what: str, _name: str, thing: Any, _options: Any, lines: list[str]) -> None:
    """Replaces the lines of a docstring by reStructuredText."""
    known, out = _parameters_of(thing), []
    in_code = False
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        is_indented = line.startswith("    ")
        if line.strip() and is_indented and not before.strip() and not (out and out[-1].startswith(":param")):
            # An indented block after an empty line is an example.
            if not in_code:
                out += ["::", ""]
            in_code = True
        elif line.strip() and not is_indented:
            in_code = False
        if in_code or not line.strip():
            out.append(line)
            continue
        found = _ARGUMENT.fullmatch(line)
        if found and set(found[1].split(", ")) <= known:
            if out and out[-1].strip() and not out[-1].startswith((":param", "    ")):
                out.append("")
            out.append(f":param {found[1].replace(', ', ',')}: {_escaped(found[2])}")
            continue
        if out and not is_indented and out[-1].startswith((":param", "    ")):
            out.append("")  # the text goes on after a list of arguments
        if line.startswith("- ") and out and out[-1].strip() and not out[-1].startswith(("- ", "  ")):
            out.append("")
        out.append(_escaped(line))
    if what == "class" and dataclasses.is_dataclass(thing):
        out += ["", *_fields_of(thing)]
    lines[:] = out


def _fields_of(thing: type[Any]) -> list[str]:
    """Returns a list of a dataclass' fields, with the comments that describe them in the source."""
    comments: dict[str, str] = {}
    for base in reversed(thing.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        before: list[str] = []
        for line in inspect.getsource(base).splitlines():
            if found := re.fullmatch(r"    # (.*)", line):
                before.append(found[1])
                continue
            if found := re.match(r"    (\w+): [^#]*(?:# (.*))?$", line):
                comments[found[1]] = " ".join([*before, *([found[2]] if found[2] else [])])
            before = []
    out = []
    for field in dataclasses.fields(thing):
        if not field.name.startswith("_"):
            text = _escaped(comments.get(field.name, ""))
            out.append(f":ivar {field.name}: `{field.type}`" + (f": {text}" if text else ""))
    return out


def _hide(_app: Any, what: str, _name: str, thing: Any, _options: Any, signature: Any, returns: Any) -> Any:
    """Hides the constructors of what only the library makes, whose fields are listed. Others are kept."""
    if what == "class" and dataclasses.is_dataclass(thing) and thing.__module__ == "voxserve.results":
        return "", ""
    return (re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature) if signature else signature), returns


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _convert)
    app.connect("autodoc-process-signature", _hide)
