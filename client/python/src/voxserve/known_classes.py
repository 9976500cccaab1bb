"""The classes of the models that have answered a client. They name what an answer has numbers of."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from voxserve.errors import InferenceError

if TYPE_CHECKING:
    from voxserve.results import ClassInfo

Key = tuple[str, int]  # a model and its version

# Returns what an answer of the model's version knows of its classes.
Teller = Callable[[str, int], "ClassLookup"]
# Asks the server for the classes of a model's version; () if it has none.
Ask = Callable[[str, int], "tuple[ClassInfo, ...]"]


class ClassLookup:
    """The classes of the model that gave an answer. It asks for them when they are first read, and keeps them then.
    Thread-safe. A pickle has the classes that are known; pickling asks nobody.
    """

    def __init__(
        self,
        classes: tuple[ClassInfo, ...] | None = (),
        tell: Callable[[Key, bool], tuple[ClassInfo, ...] | None] | None = None,
        model: str = "",
        version: int = 0,
    ) -> None:
        """classes: the classes, or None to get those of the model's version from `tell`. tell: returns them, or None if
        they are not known; its second argument says whether it may ask the server.
        """
        self._classes = classes
        self._tell = tell
        self.key: Key = (model, version)

    @property
    def is_open(self) -> bool:
        """Whether the lookup has no classes of its own yet."""
        return self._classes is None

    def read(self) -> tuple[ClassInfo, ...]:
        """Returns the classes; () while the server does not tell them."""
        tell = self._tell
        if self._classes is None and tell is not None:
            self._classes = tell(self.key, True)
            if self._classes is not None:
                self._tell = None  # frees the client, which the answer needs no more
        return self._classes or ()

    def known(self) -> tuple[ClassInfo, ...]:
        """Returns the classes that are known without a call; () if none are."""
        tell = self._tell
        classes = tell(self.key, False) if self._classes is None and tell is not None else self._classes
        return classes or ()

    def __reduce__(self) -> tuple[Any, ...]:
        return ClassLookup, (self.known(),)


class KnownClasses:
    """The classes that a server has told a client, which asks again after 30 s: a version's files may be replaced.
    Thread-safe.
    """

    SECONDS = 30.0
    TIMEOUT = 2.0  # seconds for the server to tell them, at most
    CLOSING_TIMEOUT = 1.0  # seconds in which a client that is closed asks for all that are wanted, at most

    def __init__(self) -> None:
        self._known: dict[Key, tuple[float, tuple[ClassInfo, ...] | None]] = {}
        self._lookups: weakref.WeakSet[ClassLookup] = weakref.WeakSet()
        self._lock = threading.Lock()  # of _lookups

    def lookup(
        self, tell: Callable[[Key, bool], tuple[ClassInfo, ...] | None], model: str, version: int
    ) -> ClassLookup:
        """Returns a lookup for an answer. While the answer lives, wanted() names its model until the classes are
        read.
        """
        lookup = ClassLookup(None, tell, model, version)
        with self._lock:
            self._lookups.add(lookup)
        return lookup

    def wanted(self) -> list[Key]:
        """Returns the models' versions whose classes are to be asked for before the client is closed: answers are in
        memory whose classes nobody has read.
        """
        with self._lock:
            keys = dict.fromkeys(lookup.key for lookup in self._lookups if lookup.is_open)
        return [key for key in keys if self._is_due(key)]

    def of(self, key: Key, ask: Ask | None) -> tuple[ClassInfo, ...] | None:
        """Returns the classes of a model's version; None if the server has not told them. ask: asks the server; None
        returns those that it told before. If asking fails, these stay.
        """
        if ask is not None and self._is_due(key):
            try:
                self.keep(key, ask(*key))
            except (InferenceError, ValueError):  # ValueError: another thread has closed the client
                self.keep(key, None)
        return self._known.get(key, (0.0, None))[1]

    def keep(self, key: Key, classes: tuple[ClassInfo, ...] | None) -> None:
        """Notes what the server has told. None: it did not tell, so that the classes that it told before stay."""
        if classes is None:
            classes = self.of(key, None)
        self._known[key] = time.monotonic(), classes

    def _is_due(self, key: Key) -> bool:
        return key not in self._known or self._known[key][0] < time.monotonic() - self.SECONDS
