"""The terms of a step, a page of physics each."""
