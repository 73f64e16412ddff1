"""Provides steps that are small enough to read every number, for chapters 07, 08 and 11.

tensor_split.py splits one layer over ranks, with the numbers that tools/record_explorers.py recorded; zero_steps.py
trains nine elements; step_time.py predicts the step of a Llama from six lines of arithmetic.

Begin with step_time.py.
"""
