"""What the two packages do, counted by line: loops, searches and copies, without a clock.

After `install`, which has to come before the packages are imported, they are compiled so that
each place of a loop, of a search in a list, and of a copy of a container counts how many elements
it has been over. Counts are the same in every run, and those of one line show a loop inside of a
loop, whatever else is done. What libraries do is not counted.
"""

from __future__ import annotations

import ast
import collections
import operator
import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import Any

PACKAGES = ("nczarr_fsspec", "nczarr_xarray")
#: By line: over how many elements it has been.
counts: collections.Counter[str] = collections.Counter()

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
#: Functions that go through what they are given, or through what they return.
_THROUGH = frozenset({list, tuple, dict, set, frozenset, sorted, sum, any, all, min, max})
#: Methods of containers that go through these.
_OWN = frozenset(
    {"copy", "count", "difference", "index", "insert", "intersection", "remove", "reverse", "sort"}
    | {"isdisjoint", "issubset", "issuperset", "symmetric_difference", "union"}
)
#: Methods that go through their arguments.
_GIVEN = frozenset({"extend", "fromkeys", "join", "update"})
#: Functions that look at the frame that calls them.
_FRAMES = frozenset({"super", "locals", "globals", "vars", "dir", "eval", "exec"})


def _length(one: object) -> int:
    return len(one) if isinstance(one, _CONTAINERS) else 0


def _tick(place: str) -> bool:
    counts[place] += 1
    return True


def _in(place: str, one: Any, other: Any) -> bool:
    if isinstance(other, (list, tuple, collections.deque)):
        counts[place] += len(other)
    return one in other


def _made(place: str, one: Any) -> Any:
    counts[place] += _length(one)
    return one


def _both(place: str, function: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    counts[place] += _length(one) + _length(other)
    return function(one, other)


def _call(place: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    if type(function) is types.BuiltinMethodType and function.__name__ in _OWN:
        counts[place] += _length(function.__self__)
    elif type(function) is types.BuiltinMethodType and function.__name__ in _GIVEN:
        counts[place] += sum(map(_length, args))
    elif isinstance(function, (type, types.BuiltinFunctionType)) and function in _THROUGH:
        found = function(*args, **kwargs)
        counts[place] += max([_length(found), *map(_length, args)])
        return found
    return function(*args, **kwargs)


_NAMES: dict[str, Any] = {
    "__tick__": _tick,
    "__in__": _in,
    "__made__": _made,
    "__both__": _both,
    "__call_of__": _call,
}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.Sub: "sub",
}


class _Counting(ast.NodeTransformer):
    """Puts the functions above where there is something to count."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _counted(self, function: str, node: Any, *args: ast.expr) -> Any:
        place = ast.Constant(f"{self._name}:{node.lineno}")
        call = ast.Call(ast.Name(function, ast.Load()), [place, *args], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def _loop(self, node: Any) -> Any:
        self.generic_visit(node)
        tick = ast.copy_location(ast.Expr(self._counted("__tick__", node)), node)
        node.body.insert(0, tick)
        return node

    visit_For = visit_AsyncFor = visit_While = _loop  # noqa: N815

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        self.generic_visit(node)
        node.ifs.insert(0, self._counted("__tick__", node.target))
        return node

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], (ast.In, ast.NotIn)):
            return node
        found = self._counted("__in__", node, node.left, *node.comparators)
        if isinstance(node.ops[0], ast.In):
            return found
        return ast.copy_location(ast.UnaryOp(ast.Not(), found), node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        cut = isinstance(node.slice, ast.Slice) and isinstance(node.ctx, ast.Load)
        return self._counted("__made__", node, node) if cut else node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        name = _OPERATORS.get(type(node.op))
        if name is None:
            return node
        function = ast.Attribute(ast.Name("__operator__", ast.Load()), name, ast.Load())
        return self._counted("__both__", node, function, node.left, node.right)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _FRAMES:
            return node
        found = self._counted("__call_of__", node, node.func, *node.args)
        found.keywords = node.keywords
        return found

    def _display(self, node: Any) -> Any:
        self.generic_visit(node)
        parts = node.keys if isinstance(node, ast.Dict) else node.elts
        unpacks = any(part is None or isinstance(part, ast.Starred) for part in parts)
        loaded = isinstance(getattr(node, "ctx", None), (ast.Load, type(None)))
        return self._counted("__made__", node, node) if unpacks and loaded else node

    visit_Tuple = visit_List = visit_Set = visit_Dict = _display  # noqa: N815

    def _function(self, node: Any) -> Any:
        returns, node.returns = node.returns, None
        self.generic_visit(node)
        node.returns = returns
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_arg(self, node: ast.arg) -> Any:
        return node

    def visit_match_case(self, node: ast.match_case) -> Any:
        node.body = [self.visit(part) for part in node.body]
        return node


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> types.CodeType:
        tree = ast.parse(self.get_data(self.path), self.path)
        return compile(_Counting(fullname).visit(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__.update(_NAMES, __operator__=operator)
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Count what the packages do, which must not have been imported yet."""
    assert not any(package in sys.modules for package in PACKAGES)
    sys.meta_path.insert(0, _Finder())


def run(source: str, name: str) -> dict[str, Any]:
    """Run a module of this source, counted; return its names."""
    names = {**_NAMES, "__operator__": operator}
    tree = _Counting(name).visit(ast.parse(source))
    exec(compile(tree, name, "exec", dont_inherit=True), names)
    return names


def counted(function: Callable[[], object]) -> dict[str, int]:
    """Return what a function counts the second time: the first time, modules are imported."""
    function()
    counts.clear()
    function()
    return dict(counts)
