"""Groups what stands behind the commands of `python -m helpers`, one module or package per command.

doctor.py      `doctor`: checks what this machine gives the course
train/         `train`: trains a small GPT by any parallel plan (dp, tp, pp, ZeRO) on real processes
jobs/          `hang` and `profile`: look into training jobs that never import this course
rehearse/      `rehearse`: runs a script for CUDA and NCCL on this machine and reports what would fail on GPUs
traces/        `explain`: reads traces of torch.profiler and says where the time of a step went
broken_jobs/   training scripts with one bug each, on which learners practise with the other commands

Begin with train/, the command that uses most of the course, or with doctor.py, the smallest.
"""
