# The cluster profile, for hosts with an NVIDIA driver for CUDA 13 and the NVIDIA container toolkit.
#
#   docker build -f docker/gpu.Dockerfile -t openrlhf-shear:gpu --build-arg FLASH_ATTN_CUDA_ARCHS=90 .
#   docker run --rm --init --gpus all --ipc host --network host openrlhf-shear:gpu        runs the doctor
#
# The build compiles flash-attn: see docs/install.md for MAX_JOBS. nvcc stays in the image, because vLLM
# compiles kernels at run time. The jail of the code and maths rewards makes user namespaces, which Docker's seccomp
# profile forbids: run with --security-opt seccomp=unconfined, and on a host with AppArmor also apparmor=unconfined
# (docs/rewards.md). Pass keys at run time (-e WANDB_API_KEY), and never put them into the image.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap g++ libseccomp2 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home shear && mkdir /opt/openrlhf_shear && chown shear /opt/openrlhf_shear

WORKDIR /opt/openrlhf_shear
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1
COPY scripts/install_cluster.sh scripts/
COPY requirements.lock requirements.txt ./
ARG FLASH_ATTN_CUDA_ARCHS="80;90;100;120"
ARG FLASH_ATTN_WHEEL=""
ARG MAX_JOBS=""
RUN python3 -m venv /opt/venv && DEPENDENCIES_ONLY=1 scripts/install_cluster.sh /opt/venv

COPY --chown=shear . .
RUN pip install --no-deps --no-build-isolation .

USER shear
CMD ["python", "-m", "openrlhf_shear.cli.doctor"]
