"""What pyproject.toml can't state: the wheel holds launch/ and configs/ inside the package (command/console.py)."""

from setuptools import find_packages, setup

INSIDE = {"pasta_jax._scripts.launch": "launch", "pasta_jax._scripts.configs": "configs"}

setup(packages=[*find_packages(include=["pasta_jax", "pasta_jax.*"]), *INSIDE], package_dir=INSIDE)
