"""Elastic training: a job that goes on when ranks die, as torchrun's elastic agent makes it, in code that one can read.

    with Job(ranks=4) as job:
        job.start()
        job.kill(2)
        account = job.wait()

A job trains in several processes, the ranks. When one dies, the agent ends the others, and starts all of them again
from the last checkpoint, perhaps fewer than before. The time between two such starts is a generation. The modules
lighthouse.py and healing.py show another way, in which replicas go on without a restart. A replica is one full copy of
the model.

This package exports Job, Account, Generation (the result), Kill, kill_plan (planned deaths), Beat, Heartbeat,
RankStatus, verdict (who is alive), Rendezvous and regroup. Chapter 12 of the course uses all of it, and
`python -m helpers train --chaos` uses the kill plans.

job.py              `Job`: starts training in the background, kills ranks, waits for the result
settings.py         what a job can be asked for
agent.py            runs one generation of processes after the other until the job is done, and ends those left
worker.py           what each process does in one generation
rendezvous.py       gives processes their ranks, and finds the plan for those that are left
heartbeat.py        each rank's heartbeats, and who is alive, slow, hung or dead
chaos.py            planned deaths as data, and how a rank carries one out
account.py          the result: losses, generations, repeated steps
resume_without.py   what goes wrong when a checkpoint lacks a part of the state
mini.py             heartbeat, verdict and rendezvous on one screen, in plain torch
mini_job.py         a small job that uses mini.py, with its agent
crash_safe.py       a save that survives any crash, in plain torch
lighthouse.py       who takes part in the next step, if a job goes on without a restart
healing.py          replicas that go on without a restart, and give their state to the ones that come back

It exists because torchrun's agent is too large to read in a chapter. Begin with mini.py, and then read job.py.
"""

from helpers import import_on_demand

# Planning kills must not import the Trainer and torch.
__getattr__ = import_on_demand(
    __name__,
    {
        "account": ("Account", "Generation"),
        "chaos": ("Kill", "kill_plan"),
        "heartbeat": ("Beat", "Heartbeat", "RankStatus", "verdict"),
        "job": ("Job",),
        "rendezvous": ("Rendezvous", "regroup"),
    },
)
