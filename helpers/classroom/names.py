"""What the names of a notebook stand for, as far as its text tells: modules, their parts, and names of its own."""

from __future__ import annotations

import ast
import functools
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from helpers.grading.registry import lab_of


@dataclass(frozen=True, kw_only=True)
class Notebook:
    """What the names of an answer stand for. aliases: of imported ones. own: attributes that it defines.
    given: what the lab's own cells import. lab: "03". is_metered: the task counts bytes."""

    aliases: Mapping[str, str]
    lab: str
    own: Container[str] = ()
    given: Container[str] = ()
    is_metered: bool = False

    @functools.cached_property
    def leaves(self) -> set[str]:
        """The names of torch's own answers, as a text may hold them: "DistributedSampler", not "parallel"."""
        leaves = {name.rpartition(".")[2] for name in lab_of(self.lab).forbids}
        return {leaf for leaf in leaves if leaf != leaf.lower() or "_" in leaf.strip("_")}


def aliases_of(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """What each name that an import gives stands for: {"dist": "torch.distributed"}; also one that is given on:
    `send = dist.send`."""
    found: dict[str, str] = {}
    assigned: list[tuple[str, ast.AST]] = []
    for node in (part for one in nodes for part in ast.walk(one)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Assign | ast.NamedExpr | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned += [(t.id, node.value) for t in targets if isinstance(t, ast.Name)]
    for _ in range(2):  # one that is given on twice
        for name, value in assigned:
            if isinstance(value, ast.Attribute | ast.Name) and (dotted := dotted_name(value, found)):
                found.setdefault(name, dotted)
    return found


def dotted_name(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """ "dist.all_reduce" as "torch.distributed.all_reduce"; "" for what does not begin with an imported name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return ""
    return ".".join([aliases[node.id], *reversed(parts)])


def own_names(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Attributes that the notebook sets or defines itself: `self.inner = …`, a method, a field."""
    found: set[str] = set()
    for node in (part for one in nodes for part in ast.walk(one)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            found |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            found |= {part.id for one in node.body for part in ast.walk(one) if isinstance(part, ast.Name)}
    return frozenset(found)


SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def locals_of(scope: ast.AST, aliases: Mapping[str, str]) -> set[str]:
    """The names that a function, a lambda or a comprehension binds itself, but for those that go on standing for what
    was imported: `send = dist.send`."""
    bound, given_on, outer = set(), set(), set()
    for node in _of_scope(scope):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            outer |= set(node.names)
        if isinstance(node, ast.Assign) and dotted_name(node.value, aliases):
            given_on |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return bound - given_on - outer


def _of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """What stands in it, without the scopes within; of those, nothing but their names."""
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        yield from (part for part in ast.walk(scope.args) if isinstance(part, ast.arg))
        waiting = list(scope.body) if isinstance(scope.body, list) else [scope.body]
    else:
        waiting = [one.target for one in scope.generators]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield ast.Name(id=node.name, ctx=ast.Store())
        elif not isinstance(node, SCOPES):
            waiting += ast.iter_child_nodes(node)


def outside(scope: ast.AST) -> list[ast.AST]:
    """The parts of a scope that are evaluated around it: defaults, decorators, what a comprehension goes through."""
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return [*scope.decorator_list, *_defaults(scope.args)]
    return _defaults(scope.args) if isinstance(scope, ast.Lambda) else [scope.generators[0].iter]


def _defaults(args: ast.arguments) -> list[ast.AST]:
    return [one for one in [*args.defaults, *args.kw_defaults] if one is not None]


def folded(node: ast.AST) -> str | None:
    """The text that constants give: "a" + "b", "".join(["a", "b"]). None for anything else."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.BinOp(op=ast.Mult(), left=ast.Constant(value=str() as text), right=ast.Constant(value=int() as times)):
            return text * min(times, 20)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            parts = folded(left), folded(right)
            return None if None in parts else "".join(parts)
        case ast.Call(func=ast.Attribute(attr="join", value=between), args=[ast.List() | ast.Tuple() as several]):
            texts = [folded(between), *map(folded, several.elts)]
            return None if None in texts else texts[0].join(texts[1:])
    return None
