"""What a row of `reveal` may print. Each rule gives sentences, one for each value that breaks it; none is good.

A row prints values under the labels `predicted`, `measured`, `emulated`, `by_rules` and `published`. The rule in plain
words: nothing is typed; the cell computes what it prints.

- A value is not a number or a text that stands in the code, nor a name of one, nor anything that can be worked out from
  these alone, such as `round(2.5, 1)` or a text with the number in it. An assert in front of it changes nothing.
- A prediction, and what others published, may be arithmetic on two or more named quantities, such as `(n - 1) * size`
  with `n, size = 4, 40`.
- In this arithmetic a number may stand only if it is 0, 1 or 2, a power of ten, or converts bytes or times (1,024 and
  its powers, 8, 24, 60, 3,600).
- A text may be chosen from texts in the code, which are the question's choices, by something that was computed. A
  number may not be chosen from numbers.
- The text around the placeholders of an f-string has no digits.
- Prediction and measurement are not the same expression.
- A sentence beside the row that has a number in it has placeholders for its numbers.
- Without any value the row shows the declared answer, which then is a choice or an order and no number.
- What a model paced is `emulated`, and what NCCL's rules decide is `by_rules`; neither is `measured`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

LABELS = ("predicted", "measured", "emulated", "by_rules", "published")
BY_ARITHMETIC = ("predicted", "published")  # may be arithmetic on named quantities alone
# Calls that give a constant for constants.
PLAIN = set("abs bool dict float format int len list max min range round set sorted str sum tuple".split())
CONVERSIONS = {0, 1, 2, 8, 24, 60, 3600, *(1024**n for n in range(1, 5))}
# Functions whose durations a model paces, besides all whose name begins with "emulat". Those of chapter 10 read the
# traces of a job whose layers sleep.
PACED = set(
    "Pace PacedFunction buckets_scene explain late_step_seconds loading_seconds messages_scene own_parts_scene "
    "paced parts_of_a_step registration_order_scene seconds_by_link shortened_by sleep spans_of_a_step "
    "which_queue_hides".split()
)
BY_RULES = {"programs_scene", "rehearse"}
Bound = dict[str, list[ast.AST]]  # name -> the expressions that a cell binds it to


class Row:
    """One call of `reveal`, with what its names are bound to: in its cell, or in the newest one before it."""

    def __init__(self, call: ast.Call, cell: Bound, before: Bound) -> None:
        self.bound = before | cell
        self.key = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else "?"
        self.shown = call.args[1:]
        self.values = {one.arg: one.value for one in call.keywords if one.arg in LABELS}

    # -- typed --------------------------------------------------------------------------------------------------------
    def is_typed(self, node: ast.AST, by_arithmetic: bool = False, given: frozenset[str] = frozenset()) -> bool:
        """Whether the value follows from what stands in the code alone. given: names of loops over such values."""
        if isinstance(node, ast.Name):
            bound = self.bound.get(node.id, [])
            return node.id in given or len(bound) == 1 and self._is_bound_to_typed(node.id, by_arithmetic)
        if isinstance(node, ast.BinOp) and by_arithmetic and len(self._literal_names(node)) > 1:
            return False
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            names = {one.id for loop in node.generators for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
            parts = [*(loop.iter for loop in node.generators), node.elt]
            return all(self.is_typed(part, by_arithmetic, given | names) for part in parts)
        if isinstance(node, ast.IfExp):
            return self.is_typed(node.test, by_arithmetic, given)  # or else it chooses
        if isinstance(node, ast.Call):
            joins = isinstance(node.func, ast.Attribute) and self.is_typed(node.func.value, by_arithmetic, given)
            is_plain = joins or isinstance(node.func, ast.Name) and node.func.id in PLAIN
            return is_plain and all(self.is_typed(one, by_arithmetic, given) for one in node.args)
        kinds = (ast.Constant, ast.JoinedStr, ast.FormattedValue, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp)
        if not isinstance(node, (*kinds, ast.BinOp, ast.BoolOp, ast.Compare, ast.Subscript, ast.Starred, ast.Slice)):
            return False
        parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        return all(self.is_typed(one, by_arithmetic, given) for one in parts)

    def _is_bound_to_typed(self, name: str, by_arithmetic: bool) -> bool:
        """An empty list or dict is filled later, so it is not what a name holds in the end."""
        (node,) = self.bound[name]
        is_empty = isinstance(node, ast.List | ast.Dict) and not [*ast.walk(node)][2:]
        is_own = any(isinstance(one, ast.Name) and one.id == name for one in self.behind(node))  # as in x = x + 1
        return not is_empty and not is_own and self.is_typed(node, by_arithmetic)

    def _literal_names(self, node: ast.AST) -> set[str]:
        """The names behind an expression that stand for one number in the code: named quantities."""
        names = {one.id for one in self.behind(node) if isinstance(one, ast.Name)}
        return {name for name in names if any(map(_is_number, self.bound.get(name, [])))}

    def resolved(self, node: ast.AST) -> ast.AST:
        """The expression behind a bare name."""
        bound = self.bound.get(node.id, []) if isinstance(node, ast.Name) else []
        return bound[0] if len(bound) == 1 else node

    # -- what is behind a value ---------------------------------------------------------------------------------------
    def behind(self, node: ast.AST) -> Iterator[ast.AST]:
        """Every part of an expression, and of the expressions to which the names in it are bound."""
        seen, left = set(), [node]
        while left:
            for one in ast.walk(left.pop()):
                yield one
                if isinstance(one, ast.Name) and one.id not in seen:
                    seen.add(one.id)
                    left += self.bound.get(one.id, [])

    def calls_behind(self, node: ast.AST) -> set[str]:
        """The functions whose results reach this expression, and "link=" for ranks with an emulated link."""
        calls = [one for one in self.behind(node) if isinstance(one, ast.Call)]
        found = {getattr(one.func, "id", getattr(one.func, "attr", "")) for one in calls}
        ranks = (one for one in calls if getattr(one.func, "id", "") == "Ranks")
        return found | {"link=" for one in ranks for word in one.keywords if word.arg == "link"}


def broken(sources: list[str], numbers: set[str] = frozenset()) -> list[str]:
    """What is wrong with the rows of a notebook. sources: of its code cells. numbers: keys that declare a number."""
    return [f"{row.key}: {said}" for row in rows(sources) for said in (*_values(row), *_whole(row, numbers))]


def rows(sources: list[str]) -> Iterator[Row]:
    """Every call of `reveal`, in order."""
    before: Bound = {}
    for source in sources:
        lines = ["" if line.startswith(("%", "!")) else line for line in source.splitlines()]
        try:
            tree = ast.parse("\n".join(lines))
        except SyntaxError:  # a cell in another language than Python's
            continue
        cell = bindings(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reveal":
                yield Row(node, cell, before)
        before = before | cell


def bindings(tree: ast.AST) -> Bound:
    """Every name that is bound, and to what. A loop's name is bound to what the loop goes over, and so on."""
    found: Bound = {}
    for node in ast.walk(tree):
        for target, value in _bound_by(node):
            if isinstance(target, ast.Tuple | ast.List):
                parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
                for place, one in enumerate(target.elts):
                    for name in (part for part in ast.walk(one) if isinstance(part, ast.Name)):
                        found.setdefault(name.id, []).append(parts[place] if parts else _Computed(value))
            elif isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(value)
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):  # an item is added
                found.setdefault(target.value.id, []).append(value)
    return found


def _bound_by(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AugAssign | ast.NamedExpr):
        yield node.target, _Computed(node.value)
    elif isinstance(node, ast.For | ast.comprehension):
        yield node.target, _Computed(node.iter)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr
    elif isinstance(node, ast.FunctionDef):
        yield ast.Name(id=node.name), ast.Module(body=node.body, type_ignores=[])


def _Computed(value: ast.AST) -> ast.AST:  # noqa: N802  reads like the node that it makes
    """An expression that is not typed, and behind which `value` is."""
    return ast.Await(value=value)


def _values(row: Row) -> Iterator[str]:
    for label, value in row.values.items():
        expression = row.resolved(value)
        text = ast.unparse(value)
        if row.is_typed(value, by_arithmetic=label in BY_ARITHMETIC):
            yield f"{label}={text} is typed; compute it in the cell"
        else:
            numbers = [*typed_numbers(expression)][:1]
            yield from (f"{label}={text} has the typed number {one}; name it" for one in numbers)
            yield from (f"{label}={text} has {one!r} in its text; compute it" for one in typed_texts(expression))
        if label == "measured":
            calls = row.calls_behind(value)
            paced = sorted(one for one in calls if one in PACED or one.startswith("emulat") or one == "link=")
            yield from (f"measured={text} comes from {one}, which is paced: label it emulated" for one in paced[:1])
            if ruled := sorted(calls & BY_RULES):
                yield f"measured={text} comes from {ruled[0]}: label it by_rules"


def typed_numbers(node: ast.AST) -> Iterator[str]:
    """Numbers that stand in arithmetic and are no conversion, and numbers from which one is chosen."""
    if isinstance(node, ast.Compare | ast.Constant | ast.Name):
        return
    parts, is_power = [*ast.iter_child_nodes(node)], isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    if is_power and _is_number(node.left) and _is_number(node.right):
        return  # such as 10**9, which is one number
    if isinstance(node, ast.BinOp):
        yield from (ast.unparse(one) for one in (node.left, node.right) if _is_number(one) and not _converts(one))
    elif isinstance(node, ast.IfExp):
        yield from (ast.unparse(one) for one in (node.body, node.orelse) if _is_number(one))
        parts = [node.body, node.orelse]
    elif isinstance(node, ast.Dict):
        yield from (ast.unparse(one) for one in node.values if _is_number(one))
        parts = node.values
    for one in parts:
        yield from typed_numbers(one)


def typed_texts(node: ast.AST) -> Iterator[str]:
    """Pieces of f-strings, around their placeholders, that have digits."""
    formats = {id(one.format_spec) for one in ast.walk(node) if isinstance(one, ast.FormattedValue)}
    for text in (one for one in ast.walk(node) if isinstance(one, ast.JoinedStr) and id(one) not in formats):
        pieces = (one.value for one in text.values if isinstance(one, ast.Constant))
        yield from (piece.strip() for piece in pieces if re.search(r"\d", piece))


def _is_number(node: ast.AST) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def _converts(node: ast.AST) -> bool:
    value = abs(ast.literal_eval(node))
    is_power_of_ten = re.fullmatch(r"1e[+-]\d+", f"{value:.0e}") is not None and float(f"{value:.0e}") == value
    return value in CONVERSIONS or is_power_of_ten


def _whole(row: Row, numbers: set[str]) -> Iterator[str]:
    found = [ast.dump(value) for label, value in row.values.items() if label != "predicted"]
    if "predicted" in row.values and ast.dump(row.values["predicted"]) in found:
        yield f"prediction and measurement are the same: {ast.unparse(row.values['predicted'])}"
    if not row.values and row.key in numbers:
        yield "the row shows the declared number; compute a value"
    for one in row.shown:
        expression = row.resolved(one)
        if isinstance(expression, ast.Constant | ast.BinOp) and row.is_typed(expression):
            texts = [part.value for part in ast.walk(expression) if isinstance(part, ast.Constant)]
            if any(re.search(r"\d", text) for text in texts if isinstance(text, str)):
                yield f"the sentence {ast.unparse(expression)[:60]} has typed numbers"
