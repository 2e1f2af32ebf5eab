"""Import this module before OpenRLHF's, which import flash-attn: it installs the CPU backend in this process."""

from openrlhf_shear.train.cpu import backend as cpu_backend

cpu_backend.install()
