"""Says what NCCL would have done with a program that ran on gloo: what hangs, what is refused, what goes unnoticed.

gloo runs the program, each rank writes a journal, and a replay of all journals by NCCL's rules leads to verdicts. When
this package is loaded, it registers itself with the engine as the rules "nccl" (`Ranks(..., rules="nccl")`).

rank_rules  on a rank: refuses what NCCL lacks, writes the journal
journal     the lines of a journal, written and read
replayer    the replay by NCCL's rules, and the deadlock in which it may end
judge       which replays are needed, and the verdicts of them all
verdicts    a verdict in words, with both lines and the cure
"""

from helpers.ranks import rules
from helpers.ranks.nccl.judge import AfterTask, Judge, replay, verdicts_of
from helpers.ranks.nccl.verdicts import NcclVerdict

__all__ = ["Judge", "NcclRules", "NcclVerdict", "replay", "verdicts_of"]


class NcclRules:
    """What the engine asks of the rules "nccl" (see helpers.ranks.rules.Rules)."""

    def start_on_rank(self, config):
        from helpers.ranks.nccl.rank_rules import NcclOnRank  # needs torch, which the kernel need not load

        return NcclOnRank.start(config)

    def task_judge(self) -> AfterTask:
        return AfterTask()


rules.register("nccl", NcclRules())
