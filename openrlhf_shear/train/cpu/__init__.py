"""The CPU profile: OpenRLHF's CUDA code on processor cores."""
