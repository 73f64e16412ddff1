"""What a process of a job has imported before it is forked: it takes seconds, and then a process starts in 0.1 s."""

import torch._dynamo  # noqa: F401 - the first optimizer of a process imports it

import helpers.elastic.member  # noqa: F401
