"""The classes of the models that have answered a client. They name what an answer has numbers of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from voxserve.errors import InferenceError

if TYPE_CHECKING:
    from voxserve.results import ClassInfo

# Returns the classes of a model's version: () if it has none, None if the server does not tell them now.
Teller = Callable[[str, int], "tuple[ClassInfo, ...] | None"]


class ClassLookup:
    """The classes of the model that gave an answer. It asks for them when they are first read, and keeps them then.
    Thread-safe. A pickle has the classes.
    """

    def __init__(
        self,
        classes: tuple[ClassInfo, ...] | None = (),
        tell: Teller | None = None,
        model: str = "",
        version: int = 0,
    ) -> None:
        """classes: the classes, or None to ask `tell` for those of the model's version."""
        self._classes = classes
        self._tell, self._key = tell, (model, version)

    def read(self) -> tuple[ClassInfo, ...]:
        """Returns the classes; () while the server does not tell them."""
        tell = self._tell
        if self._classes is None and tell is not None:
            self._classes = tell(*self._key)
            if self._classes is not None:
                self._tell = None  # frees the client, which the answer needs no more
        return self._classes or ()

    def __reduce__(self) -> tuple[Any, ...]:
        return ClassLookup, (self.read(),)


class KnownClasses:
    """The classes that a server has told a client, which asks again after 30 s: a version's files may be replaced.
    Thread-safe.
    """

    SECONDS = 30.0
    TIMEOUT = 2.0  # seconds for the server to tell them, at most

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[float, tuple[ClassInfo, ...] | None]] = {}

    def of(self, model: str, version: int, ask: Teller | None) -> tuple[ClassInfo, ...] | None:
        """Returns what a Teller returns. ask: asks the server; None if the client is closed. If that fails, the classes
        that the server told before stay.
        """
        when, classes = self._known.get((model, version), (float("-inf"), None))
        now = time.monotonic()
        if ask is not None and when < now - self.SECONDS:
            try:
                classes = ask(model, version)
            except (InferenceError, ValueError):  # ValueError: another thread has closed the client
                now = time.monotonic()
            self._known[model, version] = now, classes
        return classes
