"""Says what NCCL would have done with a program that ran on gloo: what hangs, what is refused, what goes unnoticed.

gloo runs the program, and each rank writes a journal, a file with its calls in order. A replay goes through all
journals by NCCL's rules and finds out where NCCL would wait forever. A verdict is one finding, such as "NCCL would hang
here: rank 0 waits for rank 1, and rank 1 waits for rank 0". When this package is loaded, it registers itself with the
engine (helpers.ranks) as the rules "nccl", so that `Ranks(..., rules="nccl")` uses it.

It exports these names:

replay       the verdicts about journals that are given as data
verdicts_of  the verdicts about the journals in a folder, for a program that runs or has ended
Judge        gives the verdicts about live ranks task by task, from the journals in a folder
NcclRules    what is registered: it starts the rules on each rank, and judges each task in the notebook's process
NcclVerdict  one verdict: its kind, the ranks, their lines, a sentence, and what to do

Its modules are:

rank_rules   runs on a rank: refuses what NCCL lacks, writes the journal
journal      the lines of a journal, written and read
replayer     the replay by NCCL's rules, and the deadlock in which it may end
judge        decides which replays are needed, and collects their verdicts
verdicts     puts a verdict into words: which lines of the program wait for each other, and what to change

It exists because some programs run on gloo and hang on NCCL, and the reader may have no GPUs. Begin with replayer.py.
"""

from helpers.ranks.nccl.judge import Judge, replay, verdicts_of
from helpers.ranks.nccl.verdicts import NcclVerdict
from helpers.ranks.wire import rules

__all__ = ["Judge", "NcclRules", "NcclVerdict", "replay", "verdicts_of"]


class NcclRules:
    """The two halves of the rules "nccl": one for each rank, one for the notebook (see wire/rules.py)."""

    def start_on_rank(self, config):
        """Begin to apply the rules on this rank. config: the WireConfig, which has the folder for the journal."""
        from helpers.ranks.nccl.rank_rules import NcclOnRank  # needs torch, which the notebook need not load

        return NcclOnRank.start(config)

    def task_judge(self) -> Judge:
        """A new object that gives the verdicts after each task of one `Ranks`."""
        return Judge()


rules.register("nccl", NcclRules())
