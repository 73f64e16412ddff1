"""Elastic training by hand: a job whose ranks may die.

    with Job(ranks=4) as job:
        job.start()
        job.kill(2)
        account = job.wait()

heartbeat.py    a thread in each rank that says that it lives, and how far it has come
verdicts.py     alive, slow, hung or dead: from what all heartbeats say
rendezvous.py   where processes become ranks of a generation, and of the next one after a death
regrouping.py   the plan for those who are left
member.py       what a process does in one generation; imported before it is forked
crew.py         the processes of one generation       agent.py    one generation after the other
job.py          the face of it                        account.py  what became of it
chaos.py        who dies when: seeded data            settings.py what a job can be asked for
listening.py    a generation's heartbeats, read along for a picture
forgotten.py    what is lost when it is not saved     healing/    go on without a restart, heal who returns
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "account": ("Account", "Generation"),
    "chaos": ("Kill", "kill_plan"),
    "heartbeat": ("Beat", "Heartbeat"),
    "job": ("Job",),
    "regrouping": ("regroup",),
    "rendezvous": ("Rendezvous",),
    "verdicts": ("Sign", "verdict"),
}


def __getattr__(name: str) -> Any:
    """Each name comes from its file when it is first asked for: whoever wants a kill plan waits for no Trainer."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"helpers.elastic has no {name}")
