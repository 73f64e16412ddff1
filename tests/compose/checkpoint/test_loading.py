"""Damage is named by file and tensor, the newest whole checkpoint is found, and older formats are read or refused."""

import json
import os
import shutil

import pytest

from helpers.chapters.fault_tolerance import DAMAGED, flip_bit
from helpers.compose.checkpoint import newest, step_folder
from helpers.compose.checkpoint.loading import problem_of
from helpers.compose.checkpoint.manifest import MANIFEST
from helpers.learner.words import use_language
from tests.compose.checkpoint.small import TWO, said_by, saved_on, trainer_of


@pytest.fixture(scope="module")
def whole(ranks, tmp_path_factory):
    return saved_on(ranks, tmp_path_factory.mktemp("whole") / "one")


@pytest.fixture
def run(whole, tmp_path):
    for steps in (10, 20, 30):
        shutil.copytree(whole, step_folder(tmp_path, steps))
    return tmp_path


def changed(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


HARMS = {
    "a tensor": (DAMAGED["flipped"], "rank_1.pt is damaged: .*the checksum of [a-z_]+ of blocks"),
    "the end": (
        lambda at: flip_bit(at / "rank_1.pt", -1),
        "rank_1.pt is damaged: .*though all of its tensors are intact",
    ),
    "half": (DAMAGED["half"], r"rank_1.pt has [\d,]+ of [\d,]+ bytes"),
    "gone": (DAMAGED["no_file"], "rank_0.pt is missing"),
    "a number": (lambda at: changed(at / MANIFEST, '"numel": 1', '"numel": 2'), "cannot be read .its checksum"),
    "cut manifest": (lambda at: os.truncate(at / MANIFEST, 1000), "manifest.json cannot be read"),
    "no manifest": (DAMAGED["no_manifest"], "holds no checkpoint of a Trainer"),
    "newer": (lambda at: changed(at / MANIFEST, '"format": 2', '"format": 7'), "is of format 7, but .* reads 1 and 2"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_damage_is_named_and_an_older_one_is_offered(run, harm):
    harm, says = HARMS[harm]
    harm(step_folder(run, 30))
    harm(step_folder(run, 20))
    found = newest(run)
    assert found.folder == step_folder(run, 10) and found.steps == 10 and len(found.damaged) == 2
    assert all("step_000" in said for said in found.damaged)
    with pytest.raises(ValueError, match=says):
        raise ValueError(found.damaged[0])


def test_the_newest_whole_one(run, tmp_path_factory):
    assert (newest(run).steps, newest(run).damaged) == (30, ())
    (run / "step_00040.0123abcd.partial").mkdir()  # is being written
    assert newest(run).steps == 30
    assert newest(tmp_path_factory.mktemp("empty")) is None


def test_a_folder_that_is_none_and_one_in_which_all_are_damaged(run):
    with pytest.raises(ValueError, match="nowhere is not a folder: give the folder"):
        newest(run / "nowhere")
    for steps in (10, 20, 30):
        (step_folder(run, steps) / "rank_1.pt").unlink()
    with pytest.raises(
        ValueError, match="no complete checkpoint: .*step_00030/rank_1.pt is missing.*step_00010/rank_1"
    ):
        newest(run)


def loaded(folder):
    return said_by(lambda: trainer_of(TWO, folder))


def test_a_load_offers_the_newest_whole_one_on_every_rank(ranks, run):
    flip_bit(step_folder(run, 30) / "rank_1.pt")
    (step_folder(run, 20) / "rank_0.pt").unlink()
    for said in ranks[:2].run(loaded, step_folder(run, 30)):
        assert "step_00030/rank_1.pt is damaged" in said and said.endswith(
            f"in the same folder is {step_folder(run, 10)}"
        )


def test_one_that_is_being_written_is_no_checkpoint(run):
    writing = run / "step_00040.0123abcd.partial"
    shutil.copytree(step_folder(run, 30), writing)
    for folder in (writing, step_folder(run, 40)):
        assert "is being written, or its save was interrupted" in problem_of(folder)
        with use_language("zh"):
            assert "正在写入" in problem_of(folder)


def of_the_first_format(folder):
    """As it was written before there were checksums of tensors."""
    path = folder / MANIFEST
    told = json.loads(path.read_text()) | {"format": 1}
    del told["crc32"], told["random"], told["extra"]["also"]
    told["files"] = {name: file["sha256"] for name, file in told["files"].items()}
    for piece in told["pieces"]:
        del piece["crc32"]
    path.write_text(json.dumps(told))


def test_an_older_format_is_loaded_and_its_damage_is_named_by_file(ranks, run):
    of_the_first_format(step_folder(run, 30))
    assert ranks[:2].run(loaded, step_folder(run, 30)) == ["", ""]
    flip_bit(step_folder(run, 30) / "rank_1.pt")
    assert "rank_1.pt is damaged" in problem_of(step_folder(run, 30))
