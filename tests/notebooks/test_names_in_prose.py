"""A name in backticks that reads like Python exists: in the code of its page, in torch, or in other_names.yaml.

An imported function or class of the course must also have the attributes and the keywords that a text gives it, as in
`ranks.run` or `Ranks(4, link=…)`. `other_names.yaml` lists, for each page, the names that belong to something else:
NCCL, DeepSpeed, a command of the system, a card of the quiz, or an argument that a text explains.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import keyword
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import yaml
from torch.distributed import fsdp, tensor
from torch.distributed.tensor import parallel
from torch.nn.parallel import DistributedDataParallel

from tests.notebooks.chapter import FENCE, PAGES, ROOT, load, source

OTHERS = yaml.safe_load(Path(__file__).with_name("other_names.yaml").read_text(encoding="utf-8"))
LABS = sorted((ROOT / "solutions").glob("*.ipynb"))
# Where a text may find a name that its page does not use.
OWNERS = (
    builtins, torch, torch.Tensor, torch.nn, torch.nn.Module, torch.nn.functional, torch.nn.utils, torch.amp,
    torch.cuda, torch.optim, torch.optim.Optimizer, torch.profiler, torch.utils.data, dist, dist.Work, fsdp,
    fsdp.FSDPModule, tensor, parallel, DistributedDataParallel,
)  # fmt: skip
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
NAME = re.compile(r"([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*)*)(\(.*\))?")
KEYWORD = re.compile(r"[(,]\s*(\w+)=(?!=)")


def imported_from_the_course(sources: list[str]) -> dict[str, object]:
    """Name -> what a page imports from `helpers` under it."""
    found = {}
    for text in sources:
        python = re.sub(r"^( *)[%!].*", r"\1pass", text, flags=re.MULTILINE)  # magics, also one below an `if`
        for node in ast.walk(ast.parse(python)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "helpers":
                module = importlib.import_module(node.module)
                for alias in node.names:
                    is_there = hasattr(module, alias.name)
                    thing = None if is_there else importlib.import_module(f"{node.module}.{alias.name}")
                    found[alias.asname or alias.name] = getattr(module, alias.name) if is_there else thing
    return found


def wrong_use(thing: object, attributes: str, call: str | None) -> str:
    """What `thing` does not have of the attributes and keywords that a text gives it; "" if it has them all."""
    for part in attributes.split(".")[1:]:
        if not hasattr(thing, part):
            return f"has no {part}"
        thing = getattr(thing, part)
    if not call or not callable(thing):
        return ""
    parameters = inspect.signature(thing).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    unknown = [name for name in KEYWORD.findall(call) if name not in parameters and not takes_any]
    return f"takes no {', '.join(unknown)}" if unknown else ""


def wrong_names(cells: list[dict], others: set[str]) -> list[str]:
    """A sentence for each name of the texts that does not exist."""
    code = [source(cell) for cell in cells if cell["cell_type"] == "code"]
    texts = [source(cell) for cell in cells if cell["cell_type"] == "markdown"]
    shown = json.dumps([cell.get("outputs") for cell in cells])
    blocks = [block[0] for text in texts for block in FENCE.finditer(text)]
    known = set(re.findall(r"\w+", "\n".join(code + blocks) + shown)) | others | {*keyword.kwlist}
    ours, wrong = imported_from_the_course(code), []
    for name in (name for text in texts for name in CODE.findall(FENCE.sub("", text))):
        if name.endswith((".py", ".pt")) or not (match := NAME.fullmatch(name)):
            continue
        first, attributes, call = match.groups()
        if first in ours:
            wrong += [f"`{name}`: {first} {what}"] if (what := wrong_use(ours[first], attributes, call)) else []
        elif not (first in known or first.isupper() or first in sys.stdlib_module_names or is_torchs(first)):
            wrong.append(f"`{name}` is not in the code of this page, nor in torch")
    return wrong


def is_torchs(name: str) -> bool:
    return any(hasattr(owner, name) for owner in OWNERS)


def key_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


# What torch says where names are looked up.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("path", [*PAGES, *LABS], ids=key_of)
def test_each_name_in_the_texts_exists(path):
    assert wrong_names(load(path), set(OTHERS.get(key_of(path), ()))) == []


def test_no_listed_name_is_superfluous():
    """Each page of the list exists, and its texts still have each name."""
    paths = {key_of(path): path for path in (*PAGES, *LABS)}
    for key, names in OTHERS.items():
        spans = " ".join(span for cell in load(paths[key]) for span in CODE.findall(source(cell)))
        assert [name for name in names if name not in spans] == [], key


CELLS = [{"cell_type": "code", "source": "from helpers.ranks import Ranks\nranks = Ranks(4)\n%%ranks", "outputs": []}]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Run `Ranks(4, link=…)` and `ranks.run(f)`, then `dist.barrier()` and `NCCL_ALGO`.", []),
        ("`Rank(4)` starts them.", ["`Rank(4)` is not in the code of this page, nor in torch"]),
        ("`Ranks(4, lnk=…)` is slow.", ["`Ranks(4, lnk=…)`: Ranks takes no lnk"]),
        ("`Ranks.rum` runs.", ["`Ranks.rum`: Ranks has no rum"]),
        ("```python\nhidden = 1\n```\nThen `hidden` is 1.", []),
    ],
)
def test_a_planted_name_is_found(text, wrong):
    cells = [*CELLS, {"cell_type": "markdown", "source": text}]
    assert wrong_names(cells, {"dist"}) == wrong
