"""Elastic training by hand: a job whose ranks may die.

    with Job(ranks=4) as job:
        job.start()
        job.kill(2)
        account = job.wait()

heartbeat.py    a thread in each rank that says that it lives, and how far it has come
verdict.py      alive, slow, hung or dead: from what all heartbeats say
rendezvous.py   where processes become ranks of a generation, and of the next one after a death
regroup.py      the plan for those who are left
member.py       what a process does in one generation
crew.py         the processes of one generation       agent.py    one generation after the other
job.py          the face of it                        account.py  what became of it
chaos.py        who dies when: seeded data
"""

from helpers.elastic.account import Account, Generation
from helpers.elastic.chaos import Kill, kill_plan
from helpers.elastic.heartbeat import Beat, Heartbeat
from helpers.elastic.job import Job
from helpers.elastic.regroup import regroup
from helpers.elastic.rendezvous import Rendezvous
from helpers.elastic.verdict import Sign, verdict

__all__ = [
    "Account",
    "Beat",
    "Generation",
    "Heartbeat",
    "Job",
    "Kill",
    "Rendezvous",
    "Sign",
    "kill_plan",
    "regroup",
    "verdict",
]
