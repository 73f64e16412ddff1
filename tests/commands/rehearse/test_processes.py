"""What the ranks of a rehearsal draw and how they die: both as the processes of a cluster would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.commands.rehearse import RehearsalReport, processes, rehearse
from tests.commands.rehearse.conftest import LAST_DIGITS
from tests.commands.rehearse.test_rehearse import HEAD, rehearsed

SEED = LAST_DIGITS  # of the rehearsals here, so that a test has the same outcome in every run
WITHOUT_A_SEED = """\
import numpy as np
model = nn.Linear(8, 1).cuda()
rows = np.random.rand()  # the length of a text, for example
model(torch.randn(4, 8, device="cuda")).square().mean().backward()
for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
print(rows, model.weight[0, 0].item(), torch.rand((), device="cuda").item(), [*{"loss", "norm", "lr", "step", "time"}])
"""
LOADED = """
import numpy as np
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return np.random.randint(1000)
loader = torch.utils.data.DataLoader(Rows(), num_workers=1)
"""
NAMES = "{'loss', 'norm', 'rate', 'step', 'seconds', 'tokens'}"
DIFFERS = {
    "a set": f"sizes = [len(name) for name in {NAMES}]",
    "a dictionary": f"sizes = {{name: len(name) for name in {NAMES}}}.values()",
    "numpy": "import numpy as np\nsizes = [np.random.randint(1000)]",
    "the card": "sizes = [torch.randint(1000, (), device='cuda').item()]",
    "a worker": LOADED + "sizes = [row.item() for row in loader]",
}
REDUCE = "\nfor size in sizes:\n    dist.all_reduce(torch.ones(1 + size, device='cuda'))\n"


def drawn(report: RehearsalReport) -> list[list[str]]:
    """What each rank printed."""
    assert not report.findings and report.ended == "ended", report
    return [report.printed[rank].split(maxsplit=3) for rank in range(2)]


def test_a_forgotten_seed_shows_and_the_reported_seed_repeats_it():
    report = rehearsed(WITHOUT_A_SEED, seed=SEED)
    first, second = drawn(report)
    assert all(mine != theirs for mine, theirs in zip(first, second, strict=True)), report.printed
    assert f"--seed {SEED} repeats" in str(report) and report.as_json()["seed"] == SEED
    assert drawn(rehearsed(WITHOUT_A_SEED, seed=SEED)) == [first, second]
    again = drawn(rehearsed(WITHOUT_A_SEED, seed=SEED + 1000))  # its last three digits are those of the hash seed
    assert all(a != b for a, b in zip(again[0][:3], first[:3], strict=True)) and again[1][3] == second[3]


@pytest.mark.parametrize("source", DIFFERS)
def test_a_mismatch_of_what_each_rank_draws_is_named(source):
    report = rehearsed(DIFFERS[source] + REDUCE, seed=SEED)
    assert [one.kind for one in report.findings] == ["unnoticed"] and "dist.all_reduce" in str(report), report


def test_a_script_that_seeds_and_sorts_is_clean():
    seeded = "import numpy as np\ntorch.manual_seed(0), np.random.seed(0)\n"
    seeded += f"sizes = [*map(len, sorted({NAMES})), np.random.randint(1000)]\n"
    assert rehearsed(seeded + "sizes += [torch.randint(1000, (), device='cuda').item()]" + REDUCE, seed=SEED).ok


def without_a_second_zygote(apart="", *, hash_seed=None):
    if hash_seed is not None:
        raise RuntimeError("the process that starts the ranks ended.")
    return "the first"


def test_one_order_of_sets_on_all_ranks_is_said(monkeypatch):
    monkeypatch.setattr(processes, "available_memory", lambda: 10)
    report = rehearsed(f"print({NAMES})\n", seed=SEED)
    assert report.ok and "too little memory" in str(report) and report.printed[0] == report.printed[1]
    monkeypatch.undo()
    monkeypatch.setattr(processes.process, "zygote", without_a_second_zygote)
    assert processes._zygotes(2, 1) == (["the first"], "memory")
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    zygotes, same_order = processes._zygotes(2, 1)
    assert zygotes == ["the first"] and "PYTHONHASHSEED is set" in str(replace(report, same_order=same_order))


def test_a_seed_that_is_no_whole_number_gets_a_sentence():
    for seed in (-1, 0.5, True):
        with pytest.raises(ValueError, match="seed=.*expected a whole number"):
            rehearse(HEAD, 2, seed=seed)


@pytest.mark.parametrize(
    ("rank_0", "how"),
    [
        ("torch.ones(2).cuda() + torch.ones(2)", "same device"),  # a mistake
        ("sys.exit(3)", "sys.exit(3)"),  # no mistake, and the ranks wait for nobody
    ],
)
def test_a_death_is_reported_beside_what_another_rank_did(rank_0, how):
    report = rehearsed(f"if rank:\n    os.abort()\n{rank_0}\n")
    said = str(report)
    assert how in said and said.count("rank 1 died: killed by SIGABRT") == 1 and "os.abort()" in said, said
    assert len(report.deaths) == 1 and report.exit_code and not report.ok
    assert "ranks 0, 1 failed" in said or report.ended == "exit"


def test_a_death_alone_is_reported_once():
    report = rehearsed("os._exit(5)\n", nproc=1)
    assert str(report).count("rank 0 died") == 1 and str(report.deaths[0]) in str(report.problem)
