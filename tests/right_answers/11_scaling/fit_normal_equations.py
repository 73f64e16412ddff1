"""By torch, with the normal equations."""

import torch

TASK = "11.fit"


def fit_law(gpus, seconds):
    def without(i):
        n, t = (torch.tensor([*of[:i], *of[i + 1 :]], dtype=torch.float64) for of in (gpus, seconds))
        columns = torch.stack([n**0, 1 / n, n], dim=1)
        law = torch.linalg.solve(columns.T @ columns, columns.T @ t)
        return (columns @ law - t).square().sum().item(), law.tolist(), gpus[i]

    _, law, outlier = min(without(i) for i in range(len(gpus)))
    return (*law, outlier)
