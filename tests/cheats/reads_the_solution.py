"""Takes the function out of the solution's notebook."""

import json
from pathlib import Path

import helpers

TASK = "03.average"
SAYS = "it opens files"


ROOT = Path(helpers.__file__).parent.parent
SOLUTION = open(ROOT / "solutions" / "03_ddp.ipynb")
CELLS = ["".join(cell["source"]) for cell in json.load(SOLUTION)["cells"]]
exec(next(source for source in CELLS if "def average_gradients" in source))
