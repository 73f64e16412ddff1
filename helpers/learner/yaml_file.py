"""Reads YAML into Python data whose mappings know their line, so that an error can name it.

The interview cards, the lists of the reference pages and the known mistakes of the labs are read so. YAML is imported
when a file is first read, because importing this module should cost nothing.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any


class Fields(dict):
    """A YAML mapping that remembers its line in the file, so that an error can name it."""

    where: str = ""


def read_yaml(path: Path) -> Any:
    """The file as Python data, in which each mapping is a `Fields`. Raises ValueError where the YAML is broken."""
    import yaml

    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_loader_class())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else "?"
        raise ValueError(
            f"{path.name} line {line}: this is not YAML ({getattr(error, 'problem', error)}); quote a text that holds "
            "`: ` or starts with a backtick or an asterisk, or write it as a block with `|`"
        ) from None


@functools.cache
def _loader_class() -> type:
    """A safe loader whose mappings know their line and refuse a field given twice, and which reads 1e-3 as a number."""
    import yaml

    class LoaderWithLines(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # libyaml's parser is several times faster
        def mapping(self, node: Any) -> Fields:
            fields = Fields(self.construct_pairs(node, deep=True))
            fields.where = f"line {node.start_mark.line + 1}"
            if len(fields) < len(node.value):
                raise yaml.MarkedYAMLError(problem="a field is given twice", problem_mark=node.start_mark)
            return fields

    LoaderWithLines.add_constructor("tag:yaml.org,2002:map", LoaderWithLines.mapping)
    exponent = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+")
    LoaderWithLines.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    return LoaderWithLines
