"""Old posts: every right-hand side runs, what is said to be gone is gone, what is said to warn does."""

import importlib.util
import os
import re
import subprocess
import sys
import warnings

import pytest
import torch

from helpers.interview.bank_file import chapters
from helpers.interview.reference_tables import FOLDER, old_posts
from tests.interview.changed_file import changed

POSTS = {post.id: post for post in old_posts()}
CIRCULATES = (
    "nn.DataParallel", "torch.cuda.amp", "amp.initialize", "pipeline.sync.Pipe", "fairscale.nn.Pipe",
    "torch.distributed.launch", "ElasticAgent", "torch.jit.script", "config_params", "NCCL_",
)  # fmt: skip


def by(where):
    return [name for name, post in POSTS.items() if post.runs == where]


def names():
    import torch
    import torch.nn.functional as F
    from torch import nn

    return {"torch": torch, "nn": nn, "F": F, "device": "cpu"}


def test_what_circulates_has_a_row():
    assert [written for written in CIRCULATES if not any(written in post.old for post in POSTS.values())] == []


@pytest.mark.parametrize("name", by("process"))
def test_today_runs_in_a_process(name):
    exec(compile(POSTS[name].code, name, "exec"), names())


@pytest.mark.parametrize("name", by("ranks"))
def test_today_runs_on_ranks(name, ranks):
    def run(code):
        import torch.distributed as dist

        exec(compile(code, name, "exec"), names() | {"dist": dist, "rank": dist.get_rank()})

    post = POSTS[name]
    if post.since and torch.__version__ < post.since:
        pytest.skip(f"torch {torch.__version__} is older than {post.since}, where today's form begins")
    ranks[:2].run(run, post.code)


@pytest.mark.parametrize("name", by("torchrun"))
def test_today_runs_under_torchrun(name, tmp_path):
    post = POSTS[name]
    if post.needs and importlib.util.find_spec(post.needs) is None:
        pytest.skip(f"{post.needs} is not installed: it is of the extra `engines`")
    script = tmp_path / "script.py"
    script.write_text(post.code, encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    quiet = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *post.launch, script], capture_output=True, text=True, timeout=150, env=quiet)
    assert done.returncode == 0, done.stderr
    assert [line for line in post.prints if line not in done.stdout] == []


@pytest.mark.parametrize("name", [name for name, post in POSTS.items() if post.gone])
def test_what_is_gone_cannot_be_imported(name):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(POSTS[name].gone)


@pytest.mark.parametrize("name", [name for name, post in POSTS.items() if post.warns])
def test_torch_warns_of_the_old_code(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(POSTS[name].warns, names())
    assert any("deprecated" in str(one.message) for one in caught)


def test_a_row_belongs_to_a_chapter_and_fits_its_column():
    assert {post.chapter for post in POSTS.values()} <= {*chapters(), "interview"}
    lines = [line for post in POSTS.values() for line in (post.old + "\n" + post.today).splitlines()]
    assert [line for line in lines if len(line) > 62] == []


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("    runs: ranks\n", "    runs: anywhere\n", r"\(data-parallel\): `runs` is 'anywhere'; it must be one of"),
        ("    chapter: 02_data_parallel\n", "", r"old_posts.yaml line 6: the field `chapter` of this post is missing"),
        ("id: cuda-amp", "id: data-parallel", r"'data-parallel' is taken by old_posts.yaml line 6; choose"),
        ("posts:\n", "post:\n", r"must hold a list under `posts:`"),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(tmp_path, old, new, sentence):
    file = changed(FOLDER / "old_posts.yaml", tmp_path, old, new)
    with pytest.raises(ValueError, match=sentence):
        old_posts(file)


def test_the_table_has_a_row_for_each_and_takes_its_colours_from_the_page():
    page = old_posts()._repr_html_()
    assert page.count("<pre") == 2 * len(POSTS) == 2 * repr(old_posts()).count("\n")
    assert not re.search(r"color:\s*#|color:\s*(black|white)", page)
