"""Makes the methods of the asyncio classes from those of the synchronous ones, which have the arguments and docstrings.

A method of the synchronous class gives the work to another method of its object, such as Client._run, and returns what
that returns. An asyncio class has a coroutine in its place, so the same method then returns a coroutine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def awaited(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]]:
    """Returns the coroutine method that awaits what `method` returns. It has the arguments and the docstring of
    `method`.
    """

    @functools.wraps(method)
    async def call(self: Any, /, *arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        begun: Any = method(self, *arguments, **keywords)
        result: Result = await begun
        return result

    return call
