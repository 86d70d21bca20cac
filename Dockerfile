# The live service in a container: `docker build -t bundlemage .`; docs/how-to/deploy.md says how to go on.
#
# It listens to all of its container's addresses, and so starts only when the store has an API key:
#     docker run --rm -v bundlemage:/data bundlemage bundlemage keys create --role admin
# What it serves is the model in /data/model, unless the store names another that was published later:
#     docker run --rm -v bundlemage:/data -v "$PWD/shop:/shop:ro" bundlemage bundlemage train /shop -o /data/model
#
# The usual package of PyTorch brings its GPU libraries along, some gigabytes. A smaller one, for CPUs alone, lies on
# PyTorch's own package index: docker build --build-arg PIP_EXTRA_INDEX_URL=ADDRESS -t bundlemage .

FROM python:3.12-slim AS build
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
RUN python -m venv /opt/bundlemage
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# By environment, so that what the build itself needs is pinned, too.
RUN PIP_CONSTRAINT=constraints.txt /opt/bundlemage/bin/pip install '.[serve]'

FROM python:3.12-slim
LABEL org.opencontainers.image.title="BundleMage" \
      org.opencontainers.image.description="Bundles for people, items for bundles: a live recommendation service" \
      org.opencontainers.image.licenses="Apache-2.0"
# A fixed number, so that whoever mounts a folder knows whose it must be.
RUN groupadd --gid 10001 bundlemage \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin bundlemage \
    && install -d -o 10001 -g 10001 -m 0750 /data
COPY --from=build /opt/bundlemage /opt/bundlemage
ENV PATH=/opt/bundlemage/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    BUNDLEMAGE_DB=sqlite:////data/bundlemage.db \
    BUNDLEMAGE_HOST=0.0.0.0 \
    BUNDLEMAGE_PORT=8000
# Everything that is written goes here; the rest of the file system may be read-only.
VOLUME /data
WORKDIR /data
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=6s --start-period=90s --retries=3 CMD ["python", "-c", "import os, sys; from bundlemage.client import Client; sys.exit(not Client('http://127.0.0.1:' + os.environ['BUNDLEMAGE_PORT'], timeout=5).healthy())"]
CMD ["bundlemage", "serve", "/data/model"]
