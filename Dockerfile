# One image for every command: api, worker, migrate, key, healthy, and serve for a try-out.
# An exact release by its tag; docs/deployment.md says how to give its digest with --build-arg BASE=.
ARG BASE=python:3.13.14-slim-bookworm

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# Without pip of its own: what runs later needs none.
RUN ["python", "-m", "venv", "--without-pip", "/opt/shiftwatch"]
# What we depend on changes less often than the code, so it gets a layer of its own. Wheels only: the
# base has no compiler, and a source distribution would run code of its own while being built.
COPY requirements.txt ./
RUN ["pip", "--python", "/opt/shiftwatch", "install", "--require-hashes", "--only-binary=:all:", "-r", "requirements.txt"]
COPY LICENSE README.md pyproject.toml ./
COPY app app
COPY migrations migrations
RUN ["pip", "--python", "/opt/shiftwatch", "install", "--no-deps", "--no-index", "--no-build-isolation", "."]

FROM ${BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Shiftwatch" \
      org.opencontainers.image.description="Label-shift monitoring for deployed classifiers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# PostgreSQL makes no database for a user without a name, so `serve` needs the entry; and /data is
# there so that a named volume mounted on it begins with its owner and mode.
RUN groupadd --gid 10001 shiftwatch \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin shiftwatch \
 && install --directory --owner 10001 --group 10001 --mode 0700 /data
COPY --from=build /opt/shiftwatch /opt/shiftwatch
ENV PATH=/opt/shiftwatch/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SHIFTWATCH_DATA_DIR=/data \
    SHIFTWATCH_HOST=0.0.0.0
# By number: an orchestrator that demands a user other than root cannot look a name up.
USER 10001:10001
WORKDIR /
EXPOSE 8000 9464
STOPSIGNAL SIGTERM
# Of the API, and of `serve`; a worker is asked on its own port (docker-compose.yml).
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["shiftwatch", "healthy"]
ENTRYPOINT ["shiftwatch"]
CMD ["api"]
