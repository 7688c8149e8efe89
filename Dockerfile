# SPDX-License-Identifier: Apache-2.0
# The demo from a clean Debian: docker build -t fovea . && docker run --rm fovea
FROM debian:12
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git && rm -rf /var/lib/apt/lists/*
WORKDIR /fovea
COPY . .
# PyTorch without its CUDA libraries; build with --build-arg INDEX= for a GPU.
ARG INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_EXTRA_INDEX_URL=$INDEX
RUN ./dev demo
CMD ["./dev", "demo"]
