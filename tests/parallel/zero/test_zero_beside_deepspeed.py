"""DeepSpeed's stages 1, 2 and 3, and offload, on CPU and gloo: their losses and weights are ours, and one process's.

Needs `pip install .[engines]`, g++ and ninja: DeepSpeed compiles a small extension when it first runs (about a minute).
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("deepspeed_worker.py")
ROOT = Path(__file__).resolve().parents[2]
SIZE = 2


def why_not() -> str:
    if importlib.util.find_spec("deepspeed") is None:
        return "DeepSpeed is not installed: DS_BUILD_OPS=0 pip install .[engines]"
    missing = [tool for tool in ("g++", "ninja") if shutil.which(tool) is None]
    return f"DeepSpeed compiles an extension, and {' and '.join(missing)} is missing" if missing else ""


pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is there"), pytest.mark.slow]


@pytest.fixture(scope="module")
def extensions(tmp_path_factory):
    """Where the compiled extension goes, once for all tests; TORCH_EXTENSIONS_DIR keeps it for the next time."""
    return os.environ.get("TORCH_EXTENSIONS_DIR") or str(tmp_path_factory.mktemp("extensions"))


def results_of(folder: Path, extensions: str, *arguments: str) -> list[dict]:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": extensions, "PYTHONPATH": paths}
    logs = [open(folder / f"{rank}.log", "w", encoding="utf-8") for rank in range(SIZE)]
    commands = [[sys.executable, str(WORKER), str(rank), str(SIZE), str(folder), *arguments] for rank in range(SIZE)]
    workers = [
        subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        for command, log in zip(commands, logs, strict=True)
    ]
    try:
        for worker in workers:
            worker.wait(timeout=400)
    finally:
        for worker, log in zip(workers, logs, strict=True):
            worker.kill()
            worker.wait()
            log.close()
    written = [folder / f"{rank}.json" for rank in range(SIZE)]
    assert all(path.exists() for path in written), (folder / "0.log").read_text()[-3000:]
    return [json.loads(path.read_text()) for path in written]


@pytest.mark.timeout(450)
@pytest.mark.parametrize("arguments", [("1",), ("2",), ("3",), ("2", "offload")], ids=" ".join)
def test_deepspeed_and_ours_and_one_process_are_equal(tmp_path, extensions, arguments):
    results = results_of(tmp_path, extensions, *arguments)
    expected = results[0]["one process"]["losses"]
    for name in ("deepspeed", "ours"):
        means = [sum(losses) / SIZE for losses in zip(*(result[name]["losses"] for result in results), strict=True)]
        assert means == pytest.approx(expected, rel=1e-5)
        assert all(result[name]["gap"] < 1e-4 for result in results)
