# Keyglance for the CPU (`cpu`, the default) and for an NVIDIA GPU (`gpu`).
#
#   docker build -t keyglance .
#   docker run --rm -p 50051:50051 -v keyglance-models:/models --shm-size 512m --stop-timeout 40 keyglance
#
#   docker build --target gpu -t keyglance:gpu .
#   docker run --rm --gpus all -p 50051:50051 -v keyglance-models:/models --shm-size 512m --stop-timeout 40 keyglance:gpu
#
# No container engine has built this file yet: CI has none. What its steps run is tested without one: tests/test_dockerfile.py
# reads this file, and installs from the files that it copies with the commands that it runs.
#
# The models are fetched at the first start and stay in the volume, with the kernels compiled for the GPU. Settings:
# KEYGLANCE_SECTION__NAME, or a file with --config. --stop-timeout is longer than server.grace (30 s), so that calls may end.
#
# Both targets stand on Python's slim image. NVIDIA's images of CUDA's runtime bring neither the Python that the locks are for nor
# cuDNN of the locked version, and would bring again, beside them, what the locked wheels bring (cuBLAS, cuFFT, cuRAND, cuDNN,
# NVRTC, runtime and headers: 1.8 GB); the host's driver is all that must come from outside, and the container toolkit mounts it.

FROM python:3.12-slim AS base
RUN useradd --system --uid 10001 keyglance \
    && install -d -o keyglance -g keyglance /models
WORKDIR /src
COPY scripts/install.sh scripts/check_install.py scripts/
COPY requirements requirements
ENV PIP_NO_CACHE_DIR=1 \
    PATH=/opt/keyglance/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    KEYGLANCE_SERVER__LISTEN=0.0.0.0:50051 \
    KEYGLANCE_MODELS__FOLDER=/models
VOLUME /models
EXPOSE 50051
STOPSIGNAL SIGTERM
# The first start fetches the models; every start on a GPU prepares each model for each batch size, which takes its time.
HEALTHCHECK --start-period=300s --interval=15s --timeout=10s CMD ["keyglance", "health", "--server", "127.0.0.1:50051"]
# The shell gives way to the server, so that SIGTERM reaches it.
ENTRYPOINT ["sh", "-c", "python -m models.install && exec keyglance-server \"$@\"", "keyglance-server"]

FROM base AS source
COPY pyproject.toml README.md LICENSE ./
COPY clients/python clients/python
COPY server server
COPY decoder_pool decoder_pool
COPY models models
COPY loadtest/__init__.py loadtest/__init__.py

FROM base AS gpu
# gpu-torch adds PyTorch, for models of its backends.
ARG FORM=gpu
RUN scripts/install.sh "$FORM" /opt/keyglance dependencies
COPY --from=source /src /src
RUN scripts/install.sh "$FORM" /opt/keyglance packages check
# `video` brings the decoder's library into the container; a driver too old for CUDA 13 is refused at once. A user of a number is
# one that Kubernetes knows not to be root.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video \
    NVIDIA_REQUIRE_CUDA="cuda>=13.0" \
    CUPY_CACHE_DIR=/models/.cupy \
    CUDA_CACHE_PATH=/models/.cuda
WORKDIR /srv
USER 10001

FROM base AS cpu
RUN scripts/install.sh cpu /opt/keyglance dependencies
COPY --from=source /src /src
RUN scripts/install.sh cpu /opt/keyglance packages check
WORKDIR /srv
USER 10001
