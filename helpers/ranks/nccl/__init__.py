"""NCCL's rules: gloo runs the program, each rank keeps a journal, and the player says what NCCL would have done.

journal     what each rank's host did, line by line      records    the same, read
queues      the play by NCCL's rules                     stuck      who waits for whom where nothing moves
judge       which plays are played; verdicts_of          verdicts   in words, with both lines and the cure
refusals    what NCCL and torch refuse at the call
"""

from helpers.ranks.nccl.judge import Judge, play, verdicts_of
from helpers.ranks.nccl.verdicts import Verdict

__all__ = ["Judge", "Verdict", "play", "verdicts_of"]
