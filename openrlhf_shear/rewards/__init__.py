"""Verifiable rewards: files that OpenRLHF loads with `--reward.remote_url FILE.py`. No torch, no engine."""
