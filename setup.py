"""pyproject.toml says it all. Here stands what setuptools forgets: the data files of an editable install.

Its editable_wheel asks the distribution for `has_data`, which is called `has_data_files`.
"""

from setuptools import Distribution, setup

Distribution.has_data = Distribution.has_data_files
setup()
