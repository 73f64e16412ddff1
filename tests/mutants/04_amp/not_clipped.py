"""Whoever forgets to clip."""

TASK = "04.order"
HINT = "not_clipped"


def train_step(model, optimizer, scaler, micro_batches, max_norm):
    optimizer.zero_grad()
    for x, y in micro_batches:
        loss = ((model(x) - y) ** 2).mean() / len(micro_batches)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
