"""SHEAR for real clusters: span-level credit assignment from hidden states, as a thin fork of OpenRLHF."""

__version__ = "0.1.0"
