"""The fork: the only room that imports openrlhf, ray, vllm or deepspeed."""
