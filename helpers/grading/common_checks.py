"""What the grader checks in every task, in addition to the comparisons of the task's own judge.

judge_promises     arguments stay as they were, and results share no memory with them, where the task says so
hidden_messages    every message that the ranks' board counted is in the communication log

`helpers.grading.judging` calls both, and the grading of a whole class of learners asks for hidden messages once
more.

Words of this file. A *world* is a number of ranks that run an answer together, and a *case* is one set of inputs for
them; the *plain* case is the first one, which is special in nothing. A *Judgement* is the outcome of one comparison.
The *board* is a file in shared memory on which the ranks' engine counts every operation. `Words` and `words[…]` are
texts in English and Chinese.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from helpers.grading.task import Case, JudgedWorld, Judgement, RunFailure, Task, TaskRun
from helpers.learner.words import Words, book

words = book("promises")
flag_words = book("flags")
# The note about a failure that shows when all cases run together, and in no case alone: "only when called again".
ONLY_TOGETHER = words["again"]


# -- promises to the caller ------------------------------------------------------------------------------------------
def judge_promises(task: Task, world: JudgedWorld) -> Iterator[Judgement]:
    """One Judgement per rank and promise: that no argument changed, and that the result shares no memory with one.

    A call in `world.calls` lists the arguments that it "changed" though it must not, and those with which its result
    shared memory. The sentence names the first argument of the first such call.
    """
    for rank, calls in enumerate(world.calls):
        for promise in ("changed", "shared"):
            argument = next((str(call[promise][0]) for call in calls if call[promise]), "")
            yield Judgement(ok=not argument, message=words[promise].format(argument), rank=rank)


def case_note(case: Case, plain: Case, call: str = "") -> Words:
    """What distinguishes the case from the plain one, to be read behind "with 3 ranks": " (even sizes)".

    call: the learner's call in one line, which is added to the note.
    """
    parts = [part for part in (case.describe(plain), Words.of(call)) if part.en]
    return words["special"].format(words["then"].join(parts)) if parts else Words.of("")


def describe_case(world: JudgedWorld, plain: Case) -> Words:
    """The note about the world's case, with the learner's call in it if every rank made the same one and no other."""
    # The learner's calls on all ranks, each as a text; equal ones count once.
    texts = {str(call["call"]) for calls in world.calls for call in calls}
    is_single_call = len(texts) == 1 and all(len(calls) <= 1 for calls in world.calls)
    return case_note(world.case, plain, texts.pop() if is_single_call else "")


# -- messages that the log lacks -------------------------------------------------------------------------------------
def hidden_messages(run: TaskRun) -> Words | None:
    """A sentence about the first rank whose log and board disagree; None where they agree on every rank.

    The log is kept by Python on the rank, where a learner's code could clear it or stop it from listening. The board is
    in shared memory below that, and each operation is counted on it before it is issued.
    """
    for rank, (counts, cases) in enumerate(zip(run.issued, run.events, strict=True) if run.issued else ()):
        # The operations of each group in the log of this rank, over all cases.
        logged = Counter(event["group"] for case in cases for event in case)
        if any(logged[group] != count for group, count in counts.items()):
            num_counted, num_logged = sum(counts.values()), sum(logged[group] for group in counts)
            return flag_words["hidden_messages"].format(rank, len(run.events), num_counted, num_logged)
    return None


def hidden_messages_failure(run: TaskRun) -> RunFailure | None:
    """The same as a RunFailure of kind "hidden"."""
    message = hidden_messages(run)
    return message and RunFailure(kind="hidden", message=message)
