"""No printed digit lies on an edge that another rounding moves: chapters give their saved outputs elsewhere too.

torch picks its kernels by ATEN_CPU_CAPABILITY, so one machine can round as others do. Each case is a run of nbval.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PROCESSORS = {"default, 1 thread": ("default", 1), "avx2, 2 threads": ("avx2", 2), "own, 1 thread": ("", 1)}
NBVAL = "-q -o filterwarnings=default -p no:cacheprovider --nbval --nbval-current-env --nbval-cell-timeout 300".split()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_prints_the_same_on_another_processor(chapter, processor, tmp_path):
    capability, threads = PROCESSORS[processor]
    own = {"HOME": str(tmp_path), "OMP_NUM_THREADS": str(threads)}
    own |= {"ATEN_CPU_CAPABILITY": capability} if capability else {}
    command = [sys.executable, "-m", "pytest", *NBVAL, f"--nbval-sanitize-with={ROOT / 'tests/nbval_sanitize.cfg'}"]
    done = subprocess.run([*command, str(chapter)], cwd=ROOT, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
