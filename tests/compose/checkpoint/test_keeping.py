"""The newest ones are kept, and each k-th; nothing else in the folder is touched."""

import pytest

from helpers.compose.checkpoint import Keeper, step_folder
from helpers.compose.checkpoint.manifest import MANIFEST


@pytest.fixture
def run(tmp_path):
    for steps in range(10, 101, 10):
        path = step_folder(tmp_path, steps)
        path.mkdir()
        (path / MANIFEST).touch()
    return tmp_path


def steps_in(folder):
    return sorted(int(path.name.removeprefix("step_")) for path in folder.glob("step_?????"))


@pytest.mark.parametrize(
    ("keeper", "left"),
    [
        (Keeper(), [80, 90, 100]),
        (Keeper(keep=1), [100]),
        (Keeper(keep=2, every=40), [40, 80, 90, 100]),
        (Keeper(keep=20), [*range(10, 101, 10)]),
    ],
    ids=str,
)
def test_the_last_ones_and_each_kth_stay(run, keeper, left):
    removed = keeper.prune(run)
    assert steps_in(run) == left and len(removed) == 10 - len(left)
    assert keeper.prune(run) == []


def test_only_whole_ones_count_and_what_is_not_of_the_past_stays(run):
    others = [
        run / name for name in ("best", "step_last", "step_00095.0123abcd.partial", "step_00200.0123abcd.partial")
    ]
    past = run / "step_00085.0123abcd.partial"  # of a save that was interrupted, before the newest whole one
    for folder in (*others, past):
        folder.mkdir()
    (step_folder(run, 100) / MANIFEST).unlink()
    Keeper(keep=2).prune(run)
    assert steps_in(run) == [80, 90, 100] and all(other.is_dir() for other in others) and not past.exists()


@pytest.mark.parametrize("numbers", [{"keep": 0}, {"keep": 3, "every": 0}])
def test_the_last_checkpoint_is_never_given_up(numbers):
    with pytest.raises(ValueError, match="give 1 or more"):
        Keeper(**numbers)
