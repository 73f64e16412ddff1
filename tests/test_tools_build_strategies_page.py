"""docs/strategies.md is what the saved notebook and the core files give."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tools.build_strategies_page import NOTEBOOK, PAGE, ROOT, as_page, build, main


def copied(folder: Path) -> Path:
    """The notebook, the files that it shows, and docs/, in another folder."""
    for name in ("helpers", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "notebooks").mkdir()
    shutil.copy(ROOT / NOTEBOOK, folder / NOTEBOOK)
    return folder


def test_the_page_is_up_to_date(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_a_change_of_a_core_file_or_of_the_notebook_is_noticed(tmp_path):
    root = copied(tmp_path)
    assert build(root, check=True) == []
    core = root / "helpers/parallel/ddp/mini.py"
    core.write_text(core.read_text().replace("MiniDDP", "TinyDDP"))
    assert [sentence.partition(":")[0] for sentence in build(root, check=True)] == [PAGE]
    assert build(root, check=False) == [] and build(root, check=True) == []
    assert "class TinyDDP" in (root / PAGE).read_text()

    notebook = json.loads((root / NOTEBOOK).read_text())
    notebook["cells"][0]["source"] = ["# Another title\n"]
    (root / NOTEBOOK).write_text(json.dumps(notebook))
    assert len(build(root, check=True)) == 1


def test_a_picture_that_is_missing_is_noticed(tmp_path):
    root = copied(tmp_path)
    picture = next((root / "docs").glob("strategies_*.png"))
    picture.unlink()
    assert build(root, check=True)[0].startswith(f"docs/{picture.name}: ")


def test_links_are_those_of_github():
    text = "[a](03_ddp.ipynb), [b](#ZeRO-3), [c](https://a.b/c.ipynb)"
    assert as_page(text) == "[a](../notebooks/03_ddp.ipynb), [b](#zero-3), [c](https://a.b/c.ipynb)"
