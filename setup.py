"""What pyproject.toml can't state: the wheel holds launch/, configs/ and checkpoints/ inside the package."""

from setuptools import find_packages, setup

INSIDE = {f"pasta_jax._scripts.{folder}": folder for folder in ("launch", "configs", "checkpoints")}

setup(packages=[*find_packages(include=["pasta_jax", "pasta_jax.*"]), *INSIDE], package_dir=INSIDE)
