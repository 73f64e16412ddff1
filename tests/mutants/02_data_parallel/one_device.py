"""Whoever lets the model do it: the numbers are right, and three devices have nothing to do."""

TASK = "02.step"
HINT = "one_device"


def train_step(model, optimizer, x, y, num_devices):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).sum() / len(x)
    loss.backward()
    optimizer.step()
    return loss
