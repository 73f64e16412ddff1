from pathlib import Path
from types import SimpleNamespace

from helpers.devices import call_site
from helpers.ranks.board import sites

LIBRARY = ("/usr/lib/python3/site-packages/torch/distributed/c10d.py", 2, "all_reduce")
PACKAGE = (f"{sites.PACKAGE}/parallel/nowhere.py", 71, "reduce")
ENGINE = (f"{sites.ENGINE}/wire.py", 5, "issue")
CELL = (f"{sites.CELL_PREFIX} 3>", 4, "<module>")


def test_the_innermost_frame_of_the_learner_is_theirs_and_not_a_librarys():
    assert sites.learner_frame([CELL, PACKAGE, LIBRARY, ENGINE]) == CELL


def test_a_patient_of_the_zoo_is_the_learners_own_script():
    patient = (f"{sites.PACKAGE}/commands/broken_jobs/scripts/patient_03.py", 25, "main")
    assert sites.learner_frame([PACKAGE, patient, LIBRARY]) == patient


def test_the_folders_by_which_frames_are_told_apart_are_there():
    folders = [value for name, value in vars(sites).items() if name.isupper() and str(value).startswith(sites.PACKAGE)]
    assert len(folders) == 5 and all(Path(folder).is_dir() for folder in [*folders, call_site._REDIRECT])


def test_without_any_frame_of_the_learner_there_is_none():
    assert sites.learner_frame([PACKAGE, LIBRARY]) is None
    assert str(sites.describe_stack([])) == "an unknown line"


def test_a_stack_through_the_package_names_both_lines():
    assert str(sites.describe_stack([CELL, PACKAGE, LIBRARY], CELL[0])) == "nowhere.py line 71, under cell line 4"


def test_a_line_of_an_earlier_cell_says_so():
    assert str(sites.describe(CELL, f"{sites.CELL_PREFIX} 9>")) == "an earlier cell, line 4"


def test_the_text_of_the_line_stands_behind_it():
    here = (__file__, 1, "<module>")
    assert str(sites.describe(here)) == f"test_sites.py line 1: `{Path(__file__).read_text().splitlines()[0]}`"


def test_names_of_ranks():
    assert str(sites.rank_names([2])) == "rank 2"
    assert str(sites.rank_names([3, 0, 1, 2])) == "ranks 0-3"
    assert str(sites.rank_names([0, 1])) == "ranks 0, 1"
    assert str(sites.rank_names([0, 2, 3])) == "ranks 0, 2, 3"


def test_a_frame_between_two_lines_gets_the_first_of_its_function():
    """Python 3.11 gives None where an exception meets code that stands on no line, and linecache takes numbers only."""
    code = SimpleNamespace(co_filename="<ranks cell 1>", co_firstlineno=3, co_name="step")
    assert sites.frames_of(SimpleNamespace(f_code=code, f_lineno=None, f_back=None)) == [("<ranks cell 1>", 3, "step")]
