"""Reads a configuration of mmengine that is written in Python, without running it.

Literals, dict(...), arithmetic on them, names that were assigned before, slices and a few pure functions are computed
from the syntax tree. The value of anything else is Unreadable: it says why, and only a setting that somebody reads is
refused for it.
"""

from __future__ import annotations

import ast
import copy
import math
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from voxserve import input_file
from voxserve.export.detector_configs.settings import Unreadable

_MOST_ITEMS = 100_000  # of a list or text that arithmetic makes
_LARGEST_EXPONENT = 64
_HINT = (
    "in your own environment, python -c \"from mmengine.config import Config; Config.fromfile('FILE').dump("
    "'resolved.py')\" writes a file without code"
)
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f.__name__: f for f in (dict, list, tuple, sum, len, min, max, abs, round, int, float, str, bool, sorted)},
    "deepcopy": lambda value: value,
}
_LIST_METHODS = ("append", "extend", "insert", "remove", "pop", "reverse", "clear")
_ITEM = re.compile("[0-9]{1,9}")  # the number of a list's item
_NUMBERS = {"pi": math.pi, "inf": math.inf, "nan": math.nan}

# Loads the merged settings of a base file, for `from .base import *` of mmengine's newer form.
LoadBase = Callable[[Path], dict[str, Any]]


class _UnknownError(Exception):
    """Raised for an expression that is not computed. The text describes it."""


def read(path: Path, bases: Mapping[str, Any], load_base: LoadBase) -> dict[str, Any]:
    """Returns the values of the names that the file assigns. bases: what `_base_.name` stands for. ValueError if the
    file is not Python.
    """
    try:
        tree = ast.parse(input_file.read_text(path), filename=str(path))
    except (SyntaxError, ValueError, MemoryError) as error:  # MemoryError: of the parser, where it is nested deeply
        raise ValueError(f"{path} is not Python: {error}") from None
    return _File(path, tree, bases, load_base).names()


def base_paths(path: Path) -> Any:
    """Returns the value of `_base_`; None if the file has none."""
    try:
        tree = ast.parse(input_file.read_text(path), filename=str(path))
    except (SyntaxError, ValueError, MemoryError) as error:  # MemoryError: of the parser, where it is nested deeply
        raise ValueError(f"{path} is not Python: {error}") from None
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "_base_" for t in statement.targets
        ):
            try:
                return ast.literal_eval(statement.value)
            except ValueError:
                raise ValueError(f"{path}:{statement.lineno}: _base_ is code, which is not run: {_HINT}") from None
    return None


class _File:
    """A file: its names and their values so far."""

    def __init__(self, path: Path, tree: ast.Module, bases: Mapping[str, Any], load_base: LoadBase) -> None:
        self._path = path
        self._load_base = load_base
        self._env: dict[str, Any] = {}
        self._imported: set[str] = set()
        self._bases = bases
        # mmengine's newer form, where dicts merge by update(), as in its ConfigDict
        self._merges = any(_is_read_base(node) for node in tree.body)
        for statement in tree.body:
            self._run(statement)

    def names(self) -> dict[str, Any]:
        hidden = {"_base_", *self._imported}
        return {name: v for name, v in self._env.items() if name not in hidden and not name.startswith("__")}

    # Statements

    def _run(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assign):
            value = self._value(statement.value)
            for target in statement.targets:
                self._assign(target, value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._assign(statement.target, self._value(statement.value))
        elif isinstance(statement, ast.AugAssign):
            if not self._extended(statement):
                both = ast.BinOp(_loaded(statement.target), statement.op, statement.value)
                self._assign(statement.target, self._value(ast.copy_location(both, statement)))
        elif isinstance(statement, ast.With) and _is_read_base(statement):
            for inner in statement.body:
                self._read_base(inner)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            self._import(statement)
        elif isinstance(statement, ast.Expr):
            self._call(statement.value)
        elif isinstance(statement, ast.If):
            test = self._value(statement.test)
            if isinstance(test, Unreadable):
                self._spoil(statement, test.reason)
            for inner in () if isinstance(test, Unreadable) else statement.body if test else statement.orelse:
                self._run(inner)
        elif isinstance(statement, ast.Delete):
            for target in statement.targets:
                self._delete(target)
        elif not isinstance(statement, ast.Pass):
            self._spoil(statement, self._code(statement))

    def _extended(self, statement: ast.AugAssign) -> bool:
        """Runs `list += values`, which changes the list under all of its names. Returns whether it is one."""
        owner, added = self._value(statement.target), self._value(statement.value)
        if not isinstance(statement.op, ast.Add) or not isinstance(owner, list) or not isinstance(added, (list, tuple)):
            return False
        if len(owner) + len(added) > _MOST_ITEMS:
            return False
        owner.extend(added)
        return True

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._env[target.id] = value
            self._imported.discard(target.id)
            return
        if isinstance(target, (ast.Tuple, ast.List)):
            values = value if isinstance(value, (list, tuple)) and len(value) == len(target.elts) else None
            for i, part in enumerate(target.elts):
                self._assign(part, Unreadable(self._code(target)) if values is None else values[i])
            return
        owner = self._value(target.value) if isinstance(target, (ast.Subscript, ast.Attribute)) else None
        key = self._value(target.slice) if isinstance(target, ast.Subscript) else getattr(target, "attr", None)
        try:
            if not isinstance(owner, (dict, list)) or isinstance(key, Unreadable):
                raise TypeError
            owner[key] = value  # type: ignore[index]
        except (TypeError, IndexError, KeyError):
            self._spoil(target, self._code(target))

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        """Makes an imported name stand for the last part of its name: CenterHead, for a setting type=CenterHead."""
        for alias in statement.names:
            name = alias.asname or (alias.name.partition(".")[0] if isinstance(statement, ast.Import) else alias.name)
            self._env[name] = alias.name.rpartition(".")[2]
            self._imported.add(name)

    def _read_base(self, statement: ast.stmt) -> None:
        if not isinstance(statement, ast.ImportFrom) or not statement.level or not statement.module:
            self._spoil(statement, self._code(statement))
            return
        folder = self._path.parent
        for _ in range(statement.level - 1):
            folder = folder.parent
        values = self._load_base(folder.joinpath(*statement.module.split(".")).with_suffix(".py"))
        for alias in statement.names:
            if alias.name == "*":
                self._env.update(values)
            else:
                self._env[alias.asname or alias.name] = values.get(alias.name, Unreadable(self._code(statement)))

    def _call(self, node: ast.expr) -> None:
        """Runs a method that changes a value of the file: update, merge, append, insert and the like."""
        if isinstance(node, ast.Constant):
            return  # a docstring
        method = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        owner = self._value(node.func.value) if method else None  # type: ignore[attr-defined]
        arguments = [self._value(a) for a in node.args] if isinstance(node, ast.Call) else []
        named = {k.arg: self._value(k.value) for k in node.keywords if k.arg} if isinstance(node, ast.Call) else {}
        readable = not any(isinstance(a, Unreadable) for a in arguments)
        if readable and isinstance(owner, dict) and method in ("update", "merge") and len(arguments) <= 1:
            other = {**(arguments[0] if arguments else {}), **named}
            if self._merges or method == "merge":
                merge_into(owner, other)
            else:
                owner.update(other)
        elif readable and isinstance(owner, dict) and method == "pop" and arguments:
            owner.pop(arguments[0], None)
        elif not (readable and isinstance(owner, list) and method in _LIST_METHODS and not named):
            self._spoil(node, self._code(node))
        else:
            try:
                getattr(owner, method)(*arguments)
            except (TypeError, ValueError, IndexError):
                self._spoil(node, self._code(node))

    def _delete(self, target: ast.expr) -> None:
        """Runs `del` of a name, a list's items or a setting."""
        if isinstance(target, ast.Name):
            self._env.pop(target.id, None)
            return
        owner = self._value(target.value) if isinstance(target, ast.Subscript) else None
        try:
            if not isinstance(owner, (dict, list)) or not isinstance(target, ast.Subscript):
                raise TypeError
            del owner[self._index(target.slice)]
        except (TypeError, IndexError, KeyError, _UnknownError):
            self._spoil(target, self._code(target))

    def _spoil(self, node: ast.AST, reason: str) -> None:
        """Makes all names unreadable that the node may change, and the lists and dicts that a loop changes, which other
        settings may hold too.
        """
        for name in _changed(node) if isinstance(node, (ast.For, ast.While)) else ():
            _spoil_value(self._env.get(name), Unreadable(reason))
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and (inner.id in self._env or isinstance(inner.ctx, ast.Store)):
                self._env[inner.id] = Unreadable(reason)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            self._env[node.name] = Unreadable(reason)

    # Expressions

    def _value(self, node: ast.expr) -> Any:
        try:
            return self._computed(node)
        except _UnknownError as unknown:
            return Unreadable(str(unknown))
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            return Unreadable(f"cannot be computed ({self._path}:{node.lineno}: {error})")

    def _computed(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            if node.id not in self._env:
                raise _UnknownError(f"is '{node.id}', which the file does not define ({self._path}:{node.lineno})")
            return self._known(self._env[node.id])
        if isinstance(node, (ast.List, ast.Tuple)):
            values = [self._value(one) for one in node.elts]
            return tuple(values) if isinstance(node, ast.Tuple) else values
        if isinstance(node, ast.Set):  # {{_base_.name}}
            inner = node.elts[0]
            if len(node.elts) == 1 and isinstance(inner, ast.Set) and len(inner.elts) == 1:
                return self._computed(inner.elts[0])
            return [self._value(one) for one in node.elts]
        if isinstance(node, ast.Dict):
            made: dict[Any, Any] = {}
            for key, item in zip(node.keys, node.values, strict=True):
                made.update(self._computed(item) if key is None else {self._computed(key): self._value(item)})
            return made
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            return self._known(self._computed(node.value)[self._index(node.slice)])
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return self._arithmetic(node)
        if isinstance(node, ast.UnaryOp):
            value = self._computed(node.operand)
            return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else +value
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
            return _COMPARISONS[type(node.ops[0])](self._computed(node.left), self._computed(node.comparators[0]))
        if isinstance(node, ast.IfExp):
            return self._computed(node.body if self._computed(node.test) else node.orelse)
        if isinstance(node, ast.JoinedStr):
            return "".join(str(self._computed(one)) for one in node.values)
        if isinstance(node, ast.FormattedValue) and node.format_spec is None:
            return self._computed(node.value)
        if isinstance(node, ast.Call):
            return self._called(node)
        raise _UnknownError(self._code(node))

    def _attribute(self, node: ast.Attribute) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id == "_base_":
            if node.attr not in self._bases:
                raise _UnknownError(f"is _base_.{node.attr}, which no base file has ({self._path}:{node.lineno})")
            return self._known(self._bases[node.attr])
        if isinstance(node.value, ast.Name) and node.value.id in self._imported:
            return _NUMBERS.get(node.attr, node.attr)  # np.pi, or a class of a module
        owner = self._computed(node.value)
        if isinstance(owner, dict) and node.attr in owner:
            return self._known(owner[node.attr])
        raise _UnknownError(self._code(node))

    def _index(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Slice):
            return slice(
                *[None if part is None else self._computed(part) for part in (node.lower, node.upper, node.step)]
            )
        return self._computed(node)

    def _arithmetic(self, node: ast.BinOp) -> Any:
        left, right = self._computed(node.left), self._computed(node.right)
        sizes = [len(value) for value in (left, right) if isinstance(value, (str, list, tuple))]
        times = [value for value in (left, right) if isinstance(value, int)] if isinstance(node.op, ast.Mult) else []
        if sizes and sum(sizes) * max([1, *times]) > _MOST_ITEMS:
            raise _UnknownError(self._code(node))
        if isinstance(node.op, ast.Pow) and abs(right) > _LARGEST_EXPONENT:
            raise _UnknownError(self._code(node))
        if isinstance(node.op, ast.Mod) and isinstance(left, str):
            raise _UnknownError(self._code(node))  # the width in a format can be of any size
        return _OPERATORS[type(node.op)](left, right)

    def _called(self, node: ast.Call) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        is_method = isinstance(node.func, ast.Attribute) and name in ("copy", "get")
        if is_method:
            owner = self._computed(node.func.value)  # type: ignore[attr-defined]
            if isinstance(owner, dict):
                return getattr(owner, name)(*[self._computed(one) for one in node.args])
        shadowed = name in self._env and name != "deepcopy"
        is_copy = name == "deepcopy" and (isinstance(node.func, ast.Name) or name in self._env or "copy" in self._env)
        if name not in _FUNCTIONS or shadowed or not (isinstance(node.func, ast.Name) or is_copy):
            raise _UnknownError(self._code(node))
        if name == "dict":
            made: dict[Any, Any] = dict(*[self._computed(one) for one in node.args])
            for keyword in node.keywords:
                made.update({keyword.arg: self._value(keyword.value)} if keyword.arg else self._computed(keyword.value))
            return made
        if node.keywords:
            raise _UnknownError(self._code(node))
        if name == "deepcopy":
            return copied(self._computed(node.args[0]))
        return _FUNCTIONS[name](*[self._computed(one) for one in node.args])

    def _known(self, value: Any) -> Any:
        if isinstance(value, Unreadable):
            raise _UnknownError(value.reason)
        return value

    def _code(self, node: ast.AST) -> str:
        line = getattr(node, "lineno", 0)
        text = " ".join(ast.unparse(node).split())
        text = text if len(text) <= 60 else text[:57] + "..."
        return f"is the result of code, which is not run ({self._path}:{line}: {text}): {_HINT}"


def copied(value: Any) -> Any:
    """Returns a deep copy of dicts and lists. Parts that are shared in the value are shared in the copy."""
    return copy.deepcopy(value)


def merge_into(base: dict[Any, Any], other: Mapping[Any, Any]) -> None:
    """Merges settings into those of a base file as mmengine does: dicts merge, unless the new one has `_delete_`; all
    else is replaced. A key that is a number changes an item of a list.
    """
    for key, value in other.items():
        old = base.get(key)
        if isinstance(value, dict) and value.get("_delete_"):
            base[key] = copied({k: v for k, v in value.items() if k != "_delete_"})
        elif isinstance(value, dict) and isinstance(old, dict):
            merge_into(old, value)
        elif (
            isinstance(value, dict) and isinstance(old, list) and value and all(_ITEM.fullmatch(str(k)) for k in value)
        ):
            for index, item in value.items():
                if int(index) >= len(old):
                    raise ValueError(f"'{key}' has {len(old)} items, and a base file's number {index} is changed")
                if isinstance(old[int(index)], dict) and isinstance(item, dict):
                    merge_into(old[int(index)], item)
                else:
                    old[int(index)] = copied(item)
        else:
            base[key] = copied(value)


def _changed(loop: ast.AST) -> set[str]:
    """Returns the names whose lists and dicts a loop changes, such as that of the list whose items it changes."""
    places: list[ast.AST] = []
    for node in ast.walk(loop):
        if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            places.append(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            places.append(node.func.value)
        elif isinstance(node, ast.AugAssign):
            places.append(node.target)
    changed = {name for place in places for name in _names_in(place)}
    for node in ast.walk(loop):
        if isinstance(node, ast.For) and changed & _names_in(node.target):
            changed |= _names_in(node.iter)
    return changed


def _names_in(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _spoil_value(value: Any, unreadable: Unreadable) -> None:
    """Replaces everything in a list or a dict."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        item, value[key] = value[key], unreadable
        _spoil_value(item, unreadable)


def _loaded(target: ast.expr) -> ast.expr:
    made = ast.parse(ast.unparse(target), mode="eval").body
    return ast.copy_location(made, target)


def _is_read_base(node: ast.stmt) -> bool:
    if not isinstance(node, ast.With):
        return False
    call = node.items[0].context_expr
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "read_base"
