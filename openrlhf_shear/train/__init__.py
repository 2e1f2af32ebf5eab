"""Training on OpenRLHF: the only package here that imports openrlhf, vllm or deepspeed."""
