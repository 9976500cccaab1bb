# The server, its command-line client, voxserve-tune and voxserve-calibrate in a small image, with the demo's models in /models.
#
#   docker build -t voxserve .
#   docker run --rm -p 8500:8500 -p 8080:8080 voxserve
#   docker run --rm -p 8500:8500 -p 8080:8080 -v "$PWD/models:/models:ro" voxserve --threads 4
#
# On a machine with an NVIDIA GPU (and NVIDIA's container toolkit) it serves on the GPU:
#
#   docker run --rm --gpus all -p 8500:8500 -p 8080:8080 voxserve
#
# Loads, unloads and searches of plans have port 8501 of the container itself: docker exec CONTAINER voxserve-client load
# NAME. To open it, with TLS and tokens: --admin_host 0.0.0.0 -p 8501:8501.
#
# The build's base has nvcc and cuBLAS, so that the kernels are compiled for every GPU from Turing on, those of Jetsons
# and Blackwell among them; CUDA_ARCHITECTURES names fewer, for a faster build and a smaller image. The other base brings
# the libraries that they need at run time, cuBLAS among them. The driver is the host's.
#
# It needs no privilege and writes nothing, but for tuned plans where --plan_dir says so:
#
#   docker run --rm --read-only --cap-drop ALL --security-opt no-new-privileges -p 8500:8500 voxserve
#
# The bill of materials (SPDX) is in /usr/share/doc/voxserve/sbom.spdx.json. deploy/README.md has Compose and Kubernetes.
#
# Any Debian 12 or Ubuntu 24.04 makes a smaller image for machines without a GPU; both stages take the same one:
#
#   docker build --build-arg BASE_BUILD=debian:12 --build-arg BASE_RUNTIME=debian:12-slim -t voxserve:cpu .

ARG BASE_BUILD=nvidia/cuda:13.0.1-devel-ubuntu24.04
ARG BASE_RUNTIME=nvidia/cuda:13.0.1-runtime-ubuntu24.04

FROM ${BASE_BUILD} AS build
WORKDIR /src
# The packages first, from the list that the scripts use: this layer stays while only sources change.
COPY deploy/packages.txt deploy/install.sh deploy/steps.sh deploy/
RUN deploy/install.sh build
COPY CMakeLists.txt CMakePresets.json ./
COPY proto proto
COPY kernels kernels
COPY engine engine
COPY server server
COPY client/cpp client/cpp
COPY client/python/VERSION client/python/
COPY deploy/offline deploy/offline
COPY deploy/tune deploy/tune
COPY deploy/calibrate deploy/calibrate
# Machine code for each, and PTX of the last one for GPUs that come later. Hopper's own instructions need 90a.
ARG CUDA_ARCHITECTURES="75-real;80-real;86-real;87-real;89-real;90a-real;100-real;110-real;120"
RUN export CUDAARCHS="$CUDA_ARCHITECTURES" \
 && bash -euc 'source deploy/steps.sh; build_preset release voxserve voxserve-client voxserve-tune voxserve-calibrate' \
 && for component in server command; do \
      cmake --install build/release --strip --prefix /out --component $component; \
    done \
 && deploy/install.sh --runtime-packages /out/bin/* > /out/packages.txt \
 && cat /out/packages.txt
# For the bill of materials: what is compiled in, and so leaves no package in the final image.
COPY deploy/sbom.sh client/python/VERSION /out/
RUN dpkg-query -W -f='${db:Status-Status} ${Package} ${Version}\n' \
  | sed -nE 's/^installed ((nlohmann-json3-dev|cuda-cccl-|cuda-cudart-dev-).*)/\1/p' > /out/compiled_in.txt

FROM ${BASE_RUNTIME}
LABEL org.opencontainers.image.title="voxserve" \
      org.opencontainers.image.description="gRPC inference server for sparse-convolution networks on point clouds" \
      org.opencontainers.image.licenses="Apache-2.0 AND CC-BY-4.0"
COPY --from=build /out/packages.txt /usr/share/doc/voxserve/packages.txt
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive xargs apt-get install -y --no-install-recommends \
      < /usr/share/doc/voxserve/packages.txt \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log \
 && useradd --system --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin voxserve
COPY LICENSE /usr/share/doc/voxserve/
COPY --from=build /src/proto/NOTICE /usr/share/doc/voxserve/
COPY --from=build /out/bin/ /usr/local/bin/
COPY deploy/models /models
COPY --from=build /out/sbom.sh /out/compiled_in.txt /out/VERSION /usr/share/doc/voxserve/
# The bill of materials; a folder for tuned plans that the server's user may write (--plan_dir=/plans); and no program
# that gives its caller another user's rights.
RUN cd /usr/share/doc/voxserve \
 && ./sbom.sh "$(cat VERSION)" compiled_in.txt /usr/local/bin/voxserve* $(find /models -type f) > sbom.spdx.json \
 && rm sbom.sh compiled_in.txt \
 && install -d -o 10001 -g 10001 /plans \
 && find / -xdev -type f -perm /6000 -exec chmod a-s {} +

# By number, so that Kubernetes can see that it is not root.
USER 10001:10001
VOLUME /models
EXPOSE 8500 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
  CMD ["voxserve-client", "health", "--address", "localhost:8500"]
# Arguments of docker run come after these, and the last one counts.
ENTRYPOINT ["voxserve", "--model_repository=/models", "--host=0.0.0.0"]
