"""What cannot be asked of a job or of replicas is answered by a sentence before a rank starts."""

import math

import pytest

from helpers.elastic import Job
from helpers.elastic.healing import train_replicas
from helpers.elastic.resume_without import resume_without
from helpers.observe.torchrun import node_dies


@pytest.mark.parametrize(
    "asked",
    [
        {"spares": 1.5}, {"spares": "1"}, {"steps": math.inf}, {"steps": 2.5}, {"save_every": True}, {"plan": "dp=2"},
        {"min_ranks": 1.5}, {"max_restarts": math.inf}, {"batch": 12.0}, {"seed": "x"}, {"pace": "a"}, {"folder": 5},
    ],
)  # fmt: skip
def test_a_job_names_the_value_of_another_kind(asked):
    (name,) = asked
    with pytest.raises(ValueError, match=f"{name}=.*expected "):
        Job(**asked)


def test_a_job_refuses_a_file_as_folder_and_deaths_that_are_none(tmp_path):
    (file := tmp_path / "file").touch()
    for folder in (file, ""):
        with pytest.raises(ValueError, match="is a file or empty"):
            Job(folder=folder)
    with pytest.raises(ValueError, match="has no option rank: its options are ranks, "):
        Job(rank=4)
    for kills in (5, [5]):
        with pytest.raises(ValueError, match="expected a list of Kill"):
            Job(kills=kills)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"copies": 2.5}, "whole numbers"), ({"steps": math.inf}, "whole numbers"), ({"kill": [1]}, "expected a dict"),
        ({"kill": {1: 3}, "back": {1: "a"}}, "whole numbers"), ({"limit": "a"}, "expected a dict"),
    ],
)  # fmt: skip
def test_copies_refuse_other_kinds(said, sentence):
    with pytest.raises(ValueError, match=sentence):
        train_replicas(**said)


@pytest.mark.parametrize("only", ["torch", ("x",), 5])
def test_only_generators_can_be_forgotten(only):
    with pytest.raises(ValueError, match="expected a tuple of names among python, numpy, torch"):
        resume_without("rng", only=only)


@pytest.mark.parametrize("ranks", ["a", 0, True])
def test_what_is_no_ranks_is_not_run_on(ranks):
    with pytest.raises(ValueError, match="expected your Ranks"):
        resume_without("rng", ranks=ranks)


@pytest.mark.parametrize("said", [{"steps": 0}, {"save_every": 1.5}, {"limit": 0}, {"at_step": "a"}])
def test_a_job_under_torchrun_is_not_started_with_numbers_that_make_none(said):
    with pytest.raises(ValueError, match="give whole numbers"):
        node_dies(**said)
