"""What pyproject.toml cannot say: the rules of examples/ are a package whose name is not its folder's."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["openrlhf_shear", "openrlhf_shear.*"]), "openrlhf_shear_examples"],
    package_dir={"openrlhf_shear_examples": "examples/rules"},
)
