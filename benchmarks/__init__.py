"""Measurements beside PyTorch's own engines. `make bench` runs them and saves Markdown tables in results/."""
