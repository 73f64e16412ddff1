"""Read a submission without running it, and say what it must not do. A report for a teacher, with the line.

What it finds costs the task its points, so it names only what no honest answer has a reason for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from helpers.grading.classroom.program import Program, Statement
from helpers.grading.classroom.rules import forbidden

EXITS = {"exit", "quit", "sys.exit", "os._exit", "os.abort", "os.kill", "os.killpg"}
FRAMES = {"inspect.currentframe", "inspect.stack", "inspect.getouterframes", "inspect.trace", "sys._getframe"}
FRAME_PARTS = {"f_back", "f_locals", "f_globals", "tb_frame", "gi_frame", "__subclasses__", "__globals__"}
STARTS = {"os.system", "os.popen", "os.fork", "os.forkpty", "os.execv", "os.execvp", "os.posix_spawn", "os.spawnv"}
DESCRIPTORS = {"os.write", "os.fdopen", "os.dup2", "os.sendfile"}
REMOVES = {"shutil.rmtree", "os.remove", "os.unlink", "os.rmdir", "os.removedirs"}
DYNAMIC = {"__import__", "importlib.import_module", "importlib.util.find_spec", "importlib.reload"}
ELSEWHERE = ("solutions", ".ipynb", "/proc/", "submitted", "progress.jsonl", "helpers/parallel", "helpers/grading")
PATCHED = ("helpers", "torch.distributed", "builtins", "sys", "torch.Tensor")
CALLS = (
    (EXITS, "ends the process with {}"),
    (FRAMES, "looks into the frames of its caller ({})"),
    (STARTS, "starts processes of its own ({})"),
    (DESCRIPTORS, "writes to file descriptors of the process ({})"),
    (REMOVES, "deletes files ({})"),
)


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """tasks: keys of those that earn nothing for it. text: a sentence that begins with the place."""

    tasks: tuple[str, ...]
    text: str


def scan(program: Program, lab: str) -> list[Suspicion]:
    """Everything in the parts that the tasks need. lab: "03"."""
    aliases = aliases_of([s for needed in program.needs.values() for s in needed])
    tasks: dict[tuple[Statement, str, int], list[str]] = {}
    for key, needed in program.needs.items():
        for statement in needed:
            for line, what in _Reader(aliases, lab).read(statement) if not statement.given else []:
                tasks.setdefault((statement.cell, what, line), []).append(key)
    found = [
        Suspicion(tasks=tuple(dict.fromkeys(keys)), text=f"{cell}, line {line}: {what}.")
        for (cell, what, line), keys in tasks.items()
    ]
    for key, cell in program.changed.items():
        text = f"cell {cell}: the locked check was changed. It is never run, the grader has its own."
        found.append(Suspicion(tasks=(key,), text=text))
    return found


def aliases_of(statements: list[Statement]) -> dict[str, str]:
    """What each name in the notebook that an import gives stands for: {"dist": "torch.distributed"}."""
    found = {}
    for statement in statements:
        for node in ast.walk(statement.node):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    found[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


class _Reader:
    def __init__(self, aliases: dict[str, str], lab: str):
        self.aliases, self.lab = aliases, lab

    def read(self, statement: Statement) -> Iterator[tuple[int, str]]:
        """(line, what it does) for each thing that is not allowed."""
        if isinstance(statement.node, ast.FunctionDef | ast.ClassDef) and statement.node.name == "check":
            return  # it is never called: the grader has its own
        for node in ast.walk(statement.node):
            for what in self._about(node):
                yield getattr(node, "lineno", statement.line), what

    def _about(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Import():
                yield from filter(None, (forbidden(alias.name, self.lab) for alias in node.names))
            case ast.ImportFrom():
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from filter(None, (forbidden(name, self.lab) for name in names))
            case ast.Call():
                yield from self._call(node)
            case ast.Attribute() if node.attr in FRAME_PARTS:
                yield f"looks into the frames of its caller ({node.attr})"
            case ast.Attribute() if isinstance(node.ctx, ast.Load):
                yield from self._used(self.name_of(node))
            case ast.Attribute():
                yield from self._patched(self.name_of(node))
            case ast.ClassDef():
                if any(isinstance(part, ast.FunctionDef) and part.name == "__eq__" for part in node.body):
                    yield f"defines what equals {node.name} (__eq__)"

    def name_of(self, node: ast.AST) -> str:
        """ "dist.all_reduce" as "torch.distributed.all_reduce"; "" for what is no dotted name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.aliases.get(node.id, node.id), *reversed(parts)])

    def _used(self, name: str) -> Iterator[str]:
        root = name.partition(".")[0]
        if root in {value.partition(".")[0] for value in self.aliases.values()}:
            if name.startswith("sys.modules"):
                yield "takes modules from sys.modules"
            elif why := forbidden(name, self.lab):
                yield why

    def _patched(self, name: str) -> Iterator[str]:
        owner = name.rpartition(".")[0]
        is_ours = any(owner == root or owner.startswith(root + ".") for root in PATCHED)
        if (is_ours or owner == "torch") and owner.partition(".")[0] in {
            v.partition(".")[0] for v in self.aliases.values()
        }:
            yield f"replaces {name}"

    def _call(self, node: ast.Call) -> Iterator[str]:
        name = self.name_of(node.func)
        for names, words in CALLS:
            if name in names:
                yield words.format(name)
        texts = [
            part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        if name in DYNAMIC:
            whys = [why for text in texts if (why := forbidden(text, self.lab))]
            yield from whys or [f"imports what its text does not say ({name})"]
        if name in ("setattr", "delattr") and node.args:
            owner = self.name_of(node.args[0])
            yield from self._patched(f"{owner}.{texts[0] if texts else '…'}")
        opens = name in ("open", "io.open", "os.open", "pathlib.Path") or getattr(node.func, "attr", "") in (
            "read_text",
            "read_bytes",
            "glob",
            "rglob",
            "iterdir",
        )
        for text in texts if opens else []:
            if part := next((part for part in ELSEWHERE if part in text), None):
                yield f"opens files that are not its own ({text if len(text) < 60 else part})"
        for text in texts if name == "print" else []:
            if " passed" in text and "ranks" in text:
                yield "prints a verdict of its own"
