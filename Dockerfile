# Keyglance on the CPU. Not built by CI (no container engine there): what it runs is what `make serve` runs, from the same lock.
#
#   docker build -t keyglance .
#   docker run --rm -p 50051:50051 -v keyglance-models:/models --shm-size 512m keyglance
#
# The models are fetched at the first start and stay in the volume. Settings: KEYGLANCE_SECTION__NAME, or a file with --config.

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/keyglance
ENV PATH=/opt/keyglance/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements/server.lock requirements/server.lock
RUN pip install --require-hashes -r requirements/server.lock
COPY pyproject.toml README.md LICENSE ./
COPY clients/python clients/python
COPY server server
COPY decoder_pool decoder_pool
COPY models models
COPY loadtest/__init__.py loadtest/__init__.py
RUN pip install --no-deps --no-build-isolation ./clients/python .

FROM python:3.12-slim AS cpu
RUN useradd --system --uid 10001 keyglance \
    && install -d -o keyglance -g keyglance /models
COPY --from=build /opt/keyglance /opt/keyglance
ENV PATH=/opt/keyglance/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    KEYGLANCE_SERVER__LISTEN=0.0.0.0:50051 \
    KEYGLANCE_MODELS__FOLDER=/models
USER keyglance
WORKDIR /srv
VOLUME /models
EXPOSE 50051
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=120s --interval=15s --timeout=5s CMD ["keyglance", "health", "--server", "127.0.0.1:50051"]
# The shell gives way to the server, so that SIGTERM reaches it.
ENTRYPOINT ["sh", "-c", "python -m models.install && exec keyglance-server \"$@\"", "keyglance-server"]
