"""Notebooks in another language: Markdown by cell id, from `zh/NN.yaml` beside the notebook. PyYAML, nothing else.

notebooks/zh/03.yaml     cell id -> hash (of the English that was translated) and text; labs/zh/03.yaml: of the lab
--stale NN               what is left to do: stale entries with the diff of their English, then entries to fill in
--hash NN                every hash is of today's English, once you have looked at what changed
--pairs COMMIT           every text in YAML and Python of which the English changed since COMMIT and the Chinese did not
A cell without an entry, or with a stale one, stays English.

`make check` runs `--pairs` with the commit in tools/translated_at.txt, the last one at which somebody compared all
pairs. Who has brought the listed Chinese up to date, or found it still right, writes the newest commit there.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS, LANGUAGE = ("notebooks", "labs"), "zh"
_ENTRY = re.compile(r"^([\w-]+):\n  hash:.*$", re.MULTILINE)

Table = dict[str, dict[str, str]]


def table_of(notebook: Path, language: str) -> Path:
    """Where the translation of a notebook lies: notebooks/03_ddp.ipynb -> notebooks/zh/03.yaml."""
    number = notebook.stem.partition("_")[0]
    return notebook.parent / language / f"{number if number.isdigit() else notebook.stem}.yaml"


def read_table(path: Path) -> Table:
    """Cell id -> hash and text. ValueError, with the file and the entry, for one of another form."""
    if not path.exists():
        return {}
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # texts only: the hash 12345678 is no number
    table = yaml.load(path.read_text(encoding="utf-8"), loader) or {}
    for name, entry in table.items():
        if not isinstance(entry, dict) or entry.keys() != {"hash", "text"}:
            raise ValueError(f"{path.name}: `{name}` is {str(entry)[:60]!r}; write a hash and a text")
    return table


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def translatable(content: bytes) -> dict[str, str]:
    """Cell id -> English Markdown, but for the cells in which learners answer."""
    return {
        cell["id"]: "".join(cell["source"])
        for cell in json.loads(content)["cells"]
        if cell["cell_type"] == "markdown" and not cell["metadata"].get("nbgrader", {}).get("solution")
    }


def translated(content: bytes, table: Table) -> bytes:
    """The notebook with every text whose English is still what was translated."""
    if not table:
        return content
    notebook, fresh = json.loads(content), translatable(content).keys() & table.keys() - set(stale(content, table))
    for cell in notebook["cells"]:
        if cell["id"] in fresh:
            cell["source"] = table[cell["id"]]["text"].rstrip("\n").splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode() + b"\n"


def stale(content: bytes, table: Table) -> list[str]:
    """Ids of entries whose English is another by now."""
    known = translatable(content)
    return [name for name in table if name in known and table[name]["hash"] != hash_of(known[name])]


# -- for translators -------------------------------------------------------------------------------------------------
def left_to_do(notebook: Path) -> Iterator[str]:
    """Stale entries with their diffs, then entries with the English text, to be filled in."""
    content, table = notebook.read_bytes(), read_table(table_of(notebook, LANGUAGE))
    known = translatable(content)
    for name in stale(content, table):
        before = next((text for text in _earlier(notebook, name) if hash_of(text) == table[name]["hash"]), "")
        lines = difflib.unified_diff(before.splitlines(), known[name].splitlines(), "translated", "now", lineterm="")
        yield f"# {name} is stale\n" + "\n".join(lines)
    for name in (name for name in known if name not in table):
        text = "\n".join(f"    {line}".rstrip() for line in known[name].splitlines())
        yield f"{name}:\n  hash: {hash_of(known[name])}\n  text: |\n{text}"


def _earlier(notebook: Path, name: str) -> Iterator[str]:
    """The English of a cell in the commits that changed its notebook, the latest first."""
    git = ("git", "-C", str(notebook.parent))
    for commit in subprocess.check_output((*git, "log", "--format=%H", "--", notebook.name), text=True).split():
        shown = subprocess.run((*git, "show", f"{commit}:./{notebook.name}"), capture_output=True)
        yield from [translatable(shown.stdout).get(name, "")] if shown.returncode == 0 else []


def refresh(notebook: Path) -> None:
    """Write today's hash into each entry; all else in the file stays as it is."""
    path, known = table_of(notebook, LANGUAGE), translatable(notebook.read_bytes())
    if path.exists():
        text = path.read_text(encoding="utf-8")
        text = _ENTRY.sub(lambda found: f"{found[1]}:\n  hash: {hash_of(known.get(found[1], ''))}", text)
        path.write_text(text, encoding="utf-8")


# -- pairs of English and Chinese in YAML and Python -----------------------------------------------------------------
@dataclass(frozen=True)
class Pair:
    """One text in both languages. path: the file that holds the Chinese. english, chinese: as JSON or source text."""

    path: str
    english: str
    chinese: str


def changed_pairs(before: Iterable[Pair], now: Iterable[Pair]) -> list[Pair]:
    """The pairs of `now` whose Chinese stood in `before` beside an English text that it no longer has.

    A pair is found again by its Chinese, so it may move to another file or get another name between the two.
    """
    now = list(now)
    english_before, english_now = _english_by_chinese(before), _english_by_chinese(now)
    left = {chinese for chinese, texts in english_before.items() if texts - english_now.get(chinese, set())}
    return [pair for pair in now if pair.chinese in left and pair.english not in english_before[pair.chinese]]


def _english_by_chinese(pairs: Iterable[Pair]) -> dict[str, set[str]]:
    texts: dict[str, set[str]] = {}
    for pair in pairs:
        texts.setdefault(pair.chinese, set()).add(pair.english)
    return texts


def pairs_of(files: dict[str, str]) -> Iterator[Pair]:
    """Every pair in these files (path -> text): helpers/**/*.yaml and *.py, and the guesses of notebooks/*.ipynb."""
    asked = dict(question for path, text in files.items() if path.endswith(".ipynb") for question in _guesses(text))
    for path, text in files.items():
        if "zh" not in text:
            continue
        if path.endswith(".yaml"):
            yield from (Pair(path, english, chinese) for english, chinese in _pairs_in_yaml(text, asked))
        elif path.endswith(".py"):
            yield from (Pair(path, english, chinese) for english, chinese in _pairs_in_python(text))


def _pairs_in_yaml(text: str, asked: dict[str, str]) -> Iterator[tuple[str, str]]:
    import yaml

    def walk(value: object, name: str) -> Iterator[tuple[str, str]]:
        if isinstance(value, dict):
            if "zh" in value:
                english = value.get("en", value.get("term", asked.get(name)))  # a guess's English is in its notebook
                if english is not None:
                    yield json.dumps(english), json.dumps(value["zh"], ensure_ascii=False)
            for key, part in value.items():
                yield from walk(part, key)
        elif isinstance(value, list):
            for part in value:
                yield from walk(part, "")

    yield from walk(yaml.load(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader)), "")


def _pairs_in_python(text: str) -> Iterator[tuple[str, str]]:
    """Calls with en= and zh=, and dictionaries with these keys."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            texts = {keyword.arg: keyword.value for keyword in node.keywords}
        elif isinstance(node, ast.Dict):
            texts = {
                key.value: value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
            }
        else:
            continue
        if {"en", "zh"} <= texts.keys() and any("\u4e00" <= letter for letter in ast.unparse(texts["zh"])):
            yield ast.unparse(texts["en"]), ast.unparse(texts["zh"])


def _guesses(notebook: str) -> Iterator[tuple[str, str]]:
    """The key and the English of every guess in a notebook: its question, with its choices or what is to be ordered."""
    for cell in json.loads(notebook)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or "guess(" not in source or source.startswith("%%"):
            continue
        for node in ast.walk(ast.parse(re.sub(r"^[%!].*$", "pass", source, flags=re.MULTILINE))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "guess" and node.args:
                parts = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                if "key" in parts:
                    texts = [ast.unparse(node.args[0]), parts.get("choices", ""), parts.get("order", "")]
                    yield ast.literal_eval(parts["key"]), json.dumps(texts)


def files_at(commit: str) -> dict[str, str]:
    """Path -> text of the files that may hold pairs, at a commit. ValueError if git has no such commit."""
    done = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "helpers", "notebooks"], capture_output=True)
    if done.returncode:
        raise ValueError(f"git has no commit {commit!r} here: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        members = [member for member in archive if member.isfile() and _may_hold_pairs(member.name)]
        return {member.name: archive.extractfile(member).read().decode() for member in members}


def files_now() -> dict[str, str]:
    paths = (path for folder in ("helpers", "notebooks") for path in (ROOT / folder).rglob("*"))
    found = ((path.relative_to(ROOT).as_posix(), path) for path in sorted(paths) if path.is_file())
    return {name: path.read_text(encoding="utf-8") for name, path in found if _may_hold_pairs(name)}


def _may_hold_pairs(path: str) -> bool:
    if path.startswith("helpers/"):
        return path.endswith((".yaml", ".py"))
    return path.endswith(".ipynb") and path.count("/") == 1


def show_changed_pairs(commit: str) -> int:
    """Print the pairs of which only the English changed since the commit; returns 1 if there are any.

    Where git does not have the commit (a downloaded archive, a shallow clone), that is printed and nothing is compared.
    """
    try:
        before = files_at(commit)
    except (ValueError, FileNotFoundError) as error:
        print(f"Chinese texts were not compared with their English: {error}")
        return 0
    changed = changed_pairs(pairs_of(before), pairs_of(files_now()))
    for pair in changed:
        print(f"{pair.path}\n  en: {pair.english}\n  zh: {pair.chinese}")
    print(f"{len(changed)} texts whose English changed since {commit[:8]} and whose Chinese did not")
    return int(bool(changed))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--stale", metavar="NN", help="print what is left to translate of a chapter and its lab")
    what.add_argument("--hash", metavar="NN", help="refresh the hashes of a chapter and its lab")
    what.add_argument("--pairs", metavar="COMMIT", help="list texts whose English changed since, but not their Chinese")
    options = parser.parse_args(arguments)
    if options.pairs:
        return show_changed_pairs(options.pairs)
    number = options.stale or options.hash
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob(f"{number}*.ipynb"))]
    if not found:
        print(f"There is no notebook {number!r}: give a number such as 03, or interview.", file=sys.stderr)
        return 1
    for path in found:
        if options.hash:
            refresh(path)
        else:
            print(f"## {table_of(path, LANGUAGE).relative_to(ROOT)}", *left_to_do(path), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
