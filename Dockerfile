# syntax=docker/dockerfile:1
# The `leasehold` binary on a small system, as a user that is not root.

# The same Rust as `rust-version` in Cargo.toml (tests/integration/deployment.rs holds them together).
FROM rust:1.95-slim-bookworm AS build
# mimalloc and the TLS library have parts in C.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev cmake make && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .
# Cargo checks that every target of the manifest has its file; the tests are not sent along and not built here.
RUN mkdir -p tests/integration && touch tests/integration/main.rs
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/build/target \
    cargo build --release --locked --bin leasehold && cp target/release/leasehold /leasehold

FROM debian:bookworm-slim
# curl is for the health check; the certificates are for an Elasticsearch behind TLS.
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates curl && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --home-dir /var/lib/leasehold --create-home --shell /usr/sbin/nologin leasehold
# A volume that is new takes over the owner of the folder that it is mounted at.
RUN cd /etc && mkdir -p leasehold/server leasehold/worker leasehold/metrics && chown -R leasehold:leasehold leasehold
COPY --from=build /leasehold /usr/local/bin/leasehold
COPY LICENSE /usr/share/doc/leasehold/LICENSE

USER leasehold
# The default store keeps its data in ./leasehold-data.
WORKDIR /var/lib/leasehold
VOLUME /var/lib/leasehold
EXPOSE 7400
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=6 \
    CMD ["curl", "--fail", "--silent", "--show-error", "http://127.0.0.1:7400/readyz"]
ENTRYPOINT ["leasehold"]
# Beyond the container's loopback, or nobody could reach it. It starts only with tokens (a settings file, named in
# LEASEHOLD_CONFIG) or with --insecure, and says so.
CMD ["serve", "--listen", "0.0.0.0:7400"]
