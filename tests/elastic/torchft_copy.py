"""A copy of ours whose quorum, healing and sum are torchft's. It does a step for each line that it reads.

python torchft_copy.py NUMBER LIFE LIGHTHOUSE FILE DIES_IN
"""

import json
import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo

from helpers.elastic.healing import Replica, ReplicaSettings
from helpers.elastic.lighthouse import next_round

LIMIT = timedelta(seconds=5)


class Theirs(Replica):
    def manage(self, lighthouse: str) -> None:
        self.near = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # or all hangs
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=LIMIT),
            load_state_dict=lambda told: (self.model.load_state_dict(told[0]), self.optimizer.load_state_dict(told[1])),
            state_dict=lambda: [self.model.state_dict(), self.optimizer.state_dict()],
            min_replica_size=1,
            use_async_quorum=False,
            timeout=LIMIT,
            rank=0,
            world_size=1,
            store_addr="localhost",
            store_port=self.near.port,
            lighthouse_addr=lighthouse,
            replica_id=str(self.number),
            hostname="localhost",
            init_sync=False,
        )

    def train(self) -> None:
        for _ in sys.stdin:
            self.manager.start_quorum()
            members = range(self.manager.num_participants())  # of two, the first one lives
            told = next_round(dict.fromkeys(members, self.manager.current_step()), None)
            try:
                report = self.step(told)
            except RuntimeError:
                report = None
            print(json.dumps({"step": told.step, "members": list(members), "report": report}), flush=True)

    def all_reduce(self, message: torch.Tensor) -> None:
        self.manager.allreduce(message, reduce_op=dist.ReduceOp.SUM).wait()
        if not self.manager.should_commit():
            raise RuntimeError("not all have the sum")


torch.set_num_threads(1)
number, life, lighthouse, file, dies_in = sys.argv[1:]


def die(moment: str, step: int) -> None:
    if (moment, str(step)) == ("sum", dies_in):
        os.kill(os.getpid(), signal.SIGKILL)


copy = Theirs(int(number), life, None, ReplicaSettings(copies=2), die)
copy.manage(lighthouse)
print("ready", flush=True)
copy.train()
torch.save(copy.model.state_dict(), file)
os._exit(0)  # its threads serve for ever
