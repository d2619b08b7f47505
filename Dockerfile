# The command c10d as an image of one static file, for a user that is not root: docker build -t c10d .
# By default it serves a store; any other command of c10d can be given, as in `docker run c10d run ...`.

FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends musl-tools
WORKDIR /source
COPY . .
RUN packaging/build-static
RUN install -D -m 755 "target/$(uname -m)-unknown-linux-musl/dist/c10d" /image/usr/bin/c10d \
    && install -d -m 1777 /image/tmp

FROM scratch
COPY --from=build /image/ /
COPY LICENSE-APACHE LICENSE-MIT /usr/share/doc/c10d/
ENV PATH=/usr/bin
USER 65532:65532
EXPOSE 29500
# Asks the store, so it fits the command below. Start anything else with --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=5s \
    CMD ["/usr/bin/c10d", "store", "ping", "--connect", "127.0.0.1:29500", "--timeout", "3s"]
ENTRYPOINT ["/usr/bin/c10d"]
CMD ["store", "serve", "--host", "::"]
