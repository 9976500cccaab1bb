"""Finds the fenced code blocks of a README and how each is to be tested.

A comment on its own line before a block says how:

    <!-- test: NAME -->                 run it; it must succeed
    <!-- test: NAME; prints: TEXT -->   run it; it must also print TEXT
    <!-- test: NAME; serves -->         one command that starts the server: it must get ready, and end well on SIGTERM
    <!-- not tested: REASON -->

A block that is indented by four spaces is only to be read. Run as a program, this file writes the one C++ block of a
README to standard output, which tests/integration/CMakeLists.txt compiles.
"""

import dataclasses
import pathlib
import re
import sys

RUNNABLE = ("sh", "bash", "console", "python", "cpp")


@dataclasses.dataclass(frozen=True)
class Block:
    line: int  # The line of the opening fence, counted from 1.
    language: str
    text: str
    name: str | None = None  # None if the block is not tested.
    prints: str | None = None
    serves: bool = False
    reason: str | None = None  # The reason why the block is not tested. If name is None too, the block has no comment.

    @property
    def marked(self) -> bool:
        return self.name is not None or self.reason is not None


def parse(markdown: str) -> list[Block]:
    blocks: list[Block] = []
    marker = ""
    lines = markdown.splitlines()
    i = 0
    while i < len(lines):
        fence = re.fullmatch(r"```(\w*)", lines[i].strip())
        if fence:
            end = next((j for j in range(i + 1, len(lines)) if lines[j].strip() == "```"), None)
            if end is None:
                raise ValueError(f"the block of line {i + 1} does not end")
            blocks.append(_block(i + 1, fence.group(1), "\n".join(lines[i + 1 : end]) + "\n", marker))
            marker, i = "", end
        elif lines[i].strip():
            marker = lines[i].strip()
        i += 1
    return blocks


def _block(line: int, language: str, text: str, marker: str) -> Block:
    untested = re.fullmatch(r"<!-- not tested: (.+) -->", marker)
    if untested:
        return Block(line, language, text, reason=untested.group(1))
    tested = re.fullmatch(r"<!-- test: ([\w-]+)(?:; (?:(serves)|prints: (.+)))? -->", marker)
    if tested:
        name, serves, prints = tested.groups()
        return Block(line, language, text, name=name, prints=prints, serves=serves is not None)
    if marker.startswith("<!--"):
        raise ValueError(f"line {line}: the comment before the block is none that is known: {marker}")
    return Block(line, language, text)


def cpp_source(markdown: str) -> str:
    """Returns the program of a README's one tested C++ block. The program reads the server's address from
    VOXSERVE_ADDRESS.
    """
    sources = [block.text for block in parse(markdown) if block.language == "cpp" and block.name]
    if len(sources) != 1:
        raise ValueError(f"one C++ block is to be tested, there are {len(sources)}")
    return "#include <cstdlib>\n" + sources[0].replace('"localhost:8500"', 'std::getenv("VOXSERVE_ADDRESS")')


if __name__ == "__main__":
    sys.stdout.write(cpp_source(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")))
