"""Credit rules for the tokens of a rollout: SHEAR, from hidden states, and others, as a thin fork of OpenRLHF."""

__version__ = "0.1.0"
