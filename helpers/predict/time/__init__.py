"""Predicts when each span of a step starts and ends, and how long a step and a training take.

data_parallel.py, zero.py, pipeline.py   a step of each strategy as a Timeline
model.py         the seconds of a step under a plan on a cluster: a sum of terms, each a page of physics in terms/
lighter.py       the same with the optimizer on the host, or of adapters alone
stacks.py        what a training stack overlaps, and which kernels it has
calibrate.py     few constants fitted on measured steps, with what they knew and an interval
measured.py      measured steps, published ones and vTrain's, from data/
flops.py         floating-point operations, MFU and HFU, days of training
stalls.py        how many workers load in time, and how often somebody is late
"""
