# The agent's image. Build it with any builder: docker build -t gpudra:0.1.0 .
# Without a registry at hand: python -m hack.image build --output image.tar
#
# BASE must be Debian's or Docker's Python 3.13; BUILD_BASE the same Python with or without a C compiler.
ARG BASE=python:3.13-slim
ARG BUILD_BASE=${BASE}

FROM ${BUILD_BASE} AS build
RUN command -v cc >/dev/null || { apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev; }
WORKDIR /src
RUN python3 -m venv /tools && /tools/bin/pip install --quiet --disable-pip-version-check uv==0.13.9
COPY pyproject.toml uv.lock ./
# Exactly the locked dependencies, each checked against its hash, none built from source.
RUN /tools/bin/uv export --quiet --frozen --no-default-groups --no-emit-project --output-file requirements.txt && \
    python3 -m venv --without-pip /opt/gpudra && \
    /tools/bin/pip --python /opt/gpudra/bin/python install --quiet --disable-pip-version-check \
        --require-hashes --only-binary :all: --no-compile -r requirements.txt
COPY setup.py MANIFEST.in LICENSE README.md ./
COPY kubeletplugin kubeletplugin
COPY native native
COPY driver driver
# The look-alike of the hardware has no place on a node. Byte code is made here: the file system is read-only there.
RUN rm -rf native/mock native/*.so native/_nvml.c && \
    /tools/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir /wheels . && \
    /tools/bin/pip --python /opt/gpudra/bin/python install --quiet --disable-pip-version-check --no-deps --no-compile \
        /wheels/*.whl && \
    /opt/gpudra/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/gpudra/lib && \
    /opt/gpudra/bin/python -I -c "import native._nvml"

FROM ${BASE}
LABEL org.opencontainers.image.title="gpudra" \
      org.opencontainers.image.description="Kubernetes DRA driver for NVIDIA GPUs: the node agent" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/gpudra /opt/gpudra
# Forty threads would each keep a heap of their own: two are as fast and take 2 MiB less.
ENV PATH=/opt/gpudra/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 MALLOC_ARENA_MAX=2
# The agent writes into the kubelet's folders and into /var/run/cdi, which belong to root. Other verbs run under any user.
USER 0:0
ENTRYPOINT ["/opt/gpudra/bin/gpudra"]
CMD ["agent"]
