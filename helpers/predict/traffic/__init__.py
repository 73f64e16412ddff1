"""Who sends what, before anything runs. The answers have the type of a measured log.

algorithms.py       who sends which chunk to whom in which step of a collective, and who then holds what
data_parallel.py    a step of nn.DataParallel and of DDP
zero.py, tensor_parallel.py, context_parallel.py, experts.py   a step of each
events.py           operations one after the other, as a log has them
axes.py             what a rank of a dp x tp x pp job sends over each axis
layers.py           the parameters of a rank in the order in which they are cut and sent
"""
