"""Provides steps that are small enough to read every number, for the explorers of chapters 07 and 08.

tensor_split.py splits one layer over ranks, with the matrices of small_matrices.py; zero_steps.py trains nine elements.
"""
