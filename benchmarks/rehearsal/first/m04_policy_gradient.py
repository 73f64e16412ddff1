import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def rollout(policy, env_gen, device, steps=32):
    """Toy environment on the host: returns the trajectory."""
    states = torch.randn(steps, 6, generator=env_gen)
    with torch.no_grad():
        probs = policy(states.to(device)).softmax(-1).cpu()
    actions = torch.multinomial(probs, 1, generator=env_gen).squeeze(1)
    rewards = (actions == (states.sum(-1) > 0).long()).float()
    return states, actions, rewards


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(3)
    policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
    ddp = DDP(policy, device_ids=[local_rank])
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    env_gen = torch.Generator().manual_seed(100 + dist.get_rank())

    for it in range(4):
        states, actions, rewards = rollout(policy, env_gen, device)
        adv = (rewards - rewards.mean()).to(device)
        logp = ddp(states.to(device)).log_softmax(-1)
        chosen = logp.gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = -(chosen * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            print(it, "reward", rewards.mean().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
