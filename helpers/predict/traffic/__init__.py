"""Predicts which messages ranks send in a step, before anything runs. The predictions have the type of a measured log.

algorithms.py       which chunk each rank sends to whom in each step of a collective, and which data it then has
data_parallel.py    a step of nn.DataParallel
zero.py, tensor_parallel.py   a step of each
context_parallel.py, expert_parallel.py   a layer of each, and for experts what decoding, capacity and balance need
expert_messages.py  each message of a layer of experts, from what the router has chosen
expert_routing.py   draws choices of a router at random, for calculators without a model
predicted_log.py    builds a log from operations
axes.py             what a rank of a dp x pp x cp x tp job sends over each axis

Begin with algorithms.py.
"""
