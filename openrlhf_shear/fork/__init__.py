"""Fork of OpenRLHF: the only package here that imports openrlhf, ray, vllm or deepspeed."""
