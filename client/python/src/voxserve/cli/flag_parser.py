"""The parser of every command's flags. A flag may be written with - in place of _: --max-message-bytes is
--max_message_bytes, as in the programs in C++. Help texts and documents have the form with _.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any


class FlagParser(argparse.ArgumentParser):
    """An ArgumentParser that takes both spellings, for its own flags and those of its subcommands."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As of ArgumentParser, which calls it for the whole command line and then for a subcommand's part."""
        return super().parse_known_args(self._spelled(sys.argv[1:] if args is None else args), namespace)

    def _spelled(self, words: Sequence[str]) -> list[str]:
        """Returns the words with the flags that this parser knows in its own spelling. Words after "--" are none."""
        known = {name.replace("-", "_"): name for name in self._option_string_actions if name.startswith("--")}
        spelled: list[str] = []
        for number, word in enumerate(words):
            if word == "--":
                return [*spelled, *words[number:]]
            name, equals, value = word.partition("=")
            is_flag = name.startswith("--") and name not in self._option_string_actions
            spelled.append(known.get(name.replace("-", "_"), name) + equals + value if is_flag else word)
        return spelled
