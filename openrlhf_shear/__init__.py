"""SHEAR for real clusters: span-level credit assignment from hidden states, as a thin fork of OpenRLHF."""

from openrlhf_shear import moved

__version__ = "0.1.0"

moved.install()
