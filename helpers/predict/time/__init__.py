"""Predicts when each span of a step starts and ends, and how long a step and a training take.

data_parallel.py, zero.py, pipeline.py   a step of each strategy as a Timeline
step.py          the seconds of a step under a plan on a cluster, as a sum of bars (bars.py)
stage_layers.py  how layers and the seconds of a pass are spread over a pipeline
dualpipe.py      the step of DeepSeek-V3's pipeline, which hides all-to-alls of experts, in its published parts
offload_and_adapters.py   the same with the optimizer on the host, and with adapters
layer.py         the seconds of one layer on one rank, from kernels.py (products, attention) and collectives.py
convolutions.py  the step of a ResNet
stacks.py        what a training stack overlaps, and which kernels it has
calibrate.py     constants fitted to the measured steps in data/, and the interval of an estimate
long_context.py  context parallelism: which method sends least and hides its messages, and what a long prompt costs
flops.py         floating-point operations, MFU and HFU, days of training

Begin with data_parallel.py, and for whole clusters with step.py.
"""
