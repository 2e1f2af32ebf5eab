# The CPU profile. Without a container runtime, docker/bare_root.py runs this file.
#
#   docker build -f docker/cpu.Dockerfile -t openrlhf-shear:cpu .
#   docker run --rm openrlhf-shear:cpu                                             runs the doctor
#   docker run --rm --init --shm-size 4g openrlhf-shear:cpu examples/scripts/train_shear_arithmetic.sh
#
# The jail of the code and maths rewards makes user namespaces, which Docker's seccomp profile forbids: run with
# --security-opt seccomp=unconfined. Pass keys at run time (-e WANDB_API_KEY), and never put them into the image.
FROM debian:bookworm-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap g++ libnuma1 libseccomp2 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home shear && mkdir /opt/openrlhf_shear && chown shear /opt/openrlhf_shear

WORKDIR /opt/openrlhf_shear
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1
COPY scripts/install_cpu.sh scripts/
COPY requirements-cpu.lock ./
RUN python3 -m venv /opt/venv && scripts/install_cpu.sh /opt/venv

COPY --chown=shear . .
RUN pip install --no-deps --no-build-isolation .

USER shear
CMD ["python", "-m", "openrlhf_shear.cli.doctor"]
