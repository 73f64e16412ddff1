"""The same questions as `measure`, answered by formula and by simulation. Nothing here imports torch.

messages.py    who sends which chunk to whom in which step of a collective, and who then holds what
comms.py       the operations and bytes of one training step
memory.py      what a rank's memory holds: model states (states.py) and activations (activations.py)
inventory.py   each tensor that torch keeps for the course's GPT, and the peak of a step on it
flops.py       operations of a step, MFU and HFU, days of training
estimators.py  other people's conventions for the same questions, by name
adapters.py    LoRA and QLoRA: the model states that are left
fit.py         does a plan fit a GPU, what dominates, and the smallest change that makes it fit
advise.py      which strategy for a model on a cluster: rules.py, strategies.py, step_time.py, reasons.py say why
timeline.py    when each span of a step starts and ends
pipeline.py    a pipeline schedule played against the clock
precision.py   what a number format (number_formats.py) keeps of a distribution, by loss scale
axes.py        where a rank stands in dp x tp x pp, its groups, and what it sends over each axis
capacity.py    how many GPUs hold so many bytes
context_parallel.py, experts.py   bytes of ring attention and Ulysses, of an MoE layer's all-to-alls
reliability.py how often a job fails, and how often to write a checkpoint
rollouts.py    memory and weight sync of reinforcement learning
"""
