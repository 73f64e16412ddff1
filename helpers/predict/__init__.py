"""Predicts memory, traffic, time, scaling and failures of training, by formula and simulation, without torch.

A prediction starts from the shape of a model (ModelSpec), a plan for training it (Plan) and a cluster, all from
helpers/specs. Chapters, explorers, the planner and the interview cards use these packages:

memory/      what a rank's memory holds, by kind: model states, activations, the peak of a step
traffic/     who sends what: collectives message by message, and the operations and bytes of a training step
time/        when each span of a step starts and ends, floating-point operations
scaling/     how much faster more GPUs are, where that stops paying, days and GPU-hours, what a measured curve lost
failures.py  how often a long job fails, what it loses, how often to save, what a save costs
precision.py what a number format keeps of a value
advice/      does a plan fit, which strategy for a model on a cluster, and why
by_hand/     models and matrices small enough that every number can be read

It needs no torch, so that a page and a card can predict, too. Begin with memory/, and then read time/.
"""
