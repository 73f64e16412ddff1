"""An old copy of a notebook is told where a name stands now, and what was passed counts under a new name."""

import importlib
import importlib.util

import pytest

from helpers import moved, progress


def test_every_new_name_is_there_and_no_old_one():
    for old, new in moved.moved()["modules"].items():
        assert not new or importlib.util.find_spec(new), f"moved.yaml sends {old} to {new}, which does not exist"
        with pytest.raises(ImportError, match="older version"):
            importlib.import_module(old)


@pytest.mark.parametrize(
    ("code", "new"),
    [
        ("from helpers.primitives.clip import clip_grad_norm_", "helpers.parallel"),
        ("from helpers.predict import timeline", "helpers.predict.time.ddp"),
        ("import helpers.predict.axes", "helpers.predict.traffic.axes"),
    ],
)
def test_each_form_of_an_old_import_gets_the_sentence(code, new, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "/somewhere/work/03_ddp.ipynb")
    with pytest.raises(ImportError, match="03_ddp.ipynb is a copy of an older version of its chapter") as caught:
        exec(code, {})
    assert f"is now {new};" in str(caught.value) and "beside it as 03_ddp.new.ipynb" in str(caught.value)


def test_what_never_was_there_is_an_ordinary_error():
    with pytest.raises(ModuleNotFoundError, match="No module named 'helpers.nothing'"):
        importlib.import_module("helpers.nothing")


def test_what_was_passed_survives_a_renamed_task(tmp_path, monkeypatch):
    file = tmp_path / "progress.jsonl"
    progress.record("check", "03.mean", True, path=file)
    progress.record("check", "03.average", False, path=file)
    monkeypatch.setattr(moved, "moved", lambda: {"modules": {}, "tasks": {"03.mean": "03.average"}})
    standing = progress.done(file)["03"]
    assert list(standing) == ["03.average"]
    assert standing["03.average"].passed and standing["03.average"].attempts == 2
