"""`pip install .` installs the GPU cluster's requirements; on a CPU machine use scripts/setup_cpu.sh instead."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


def requirements(name: str) -> list[str]:
    lines = (line.split("#")[0].strip() for line in (HERE / name).read_text().splitlines())
    return [line for line in lines if line]


def version() -> str:
    source = (HERE / "openrlhf_shear" / "__init__.py").read_text()
    return source.split('__version__ = "')[1].split('"')[0]


setup(
    name="openrlhf_shear",
    version=version(),
    description="SHEAR: span-level credit assignment from hidden states, as a thin fork of OpenRLHF",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=[*find_packages(include=["openrlhf_shear", "openrlhf_shear.*"]), "openrlhf_shear_examples"],
    package_dir={"openrlhf_shear_examples": "examples/rules"},
    package_data={
        "openrlhf_shear.arithmetic": ["shipped_policy/*"],
        "openrlhf_shear.fork": ["contract.json"],
        "openrlhf_shear.preflight": ["*.toml"],
        "openrlhf_shear.evaluation.comparison": ["*.html", "*.css", "*.js"],
        "openrlhf_shear.report": ["*.html", "*.css"],
        "openrlhf_shear.rollouts.page": ["*.html", "*.css", "*.js"],
    },
    python_requires=">=3.11,<3.13",
    install_requires=requirements("requirements.txt"),
)
