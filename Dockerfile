# One file, four images; `docker build .` makes the first.
#   runtime   CPU: llama.cpp and the small model that ships with the project
#   bench     the same, and what `llm-runtime bench` needs
#   cuda      NVIDIA GPUs: on top of vLLM's own image
#   ray       the same, and Ray Serve; what deploy/kubernetes/rayservice.yaml runs
# Each step is in deploy/container/build_steps.sh. No image holds a key: pass LLM_RUNTIME_API_KEYS when it
# runs. Without keys the server refuses to listen on an address that others reach.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0

FROM ${PYTHON_IMAGE} AS dependencies
WORKDIR /build
COPY requirements requirements
COPY deploy/container deploy/container
RUN deploy/container/build_steps.sh dependencies /opt/llm-runtime

FROM dependencies AS build
# With a compiler the hot path is compiled; it stays behind in this stage.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN deploy/container/build_steps.sh project /opt/llm-runtime

FROM build AS build-bench
RUN deploy/container/build_steps.sh bench /opt/llm-runtime

FROM ${PYTHON_IMAGE} AS base
# llama.cpp wants GNU's OpenMP.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 llm-runtime \
    && useradd --uid 10001 --gid 10001 --no-log-init --create-home --home-dir /var/lib/llm-runtime llm-runtime \
    && install -d -o 10001 -g 10001 /var/cache/llm-runtime /var/lib/llm-runtime/results
ENV PATH=/opt/llm-runtime/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    LLM_RUNTIME_HOST=0.0.0.0 \
    LLM_RUNTIME_CACHE=/var/cache/llm-runtime
WORKDIR /var/lib/llm-runtime
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --start-interval=1s --retries=3 \
    CMD ["llm-runtime-health"]
ENTRYPOINT ["llm-runtime"]
CMD ["serve"]

FROM base AS bench
COPY --from=build-bench /opt/llm-runtime /opt/llm-runtime
HEALTHCHECK NONE
CMD ["bench", "--help"]

FROM ${VLLM_IMAGE} AS cuda
WORKDIR /build
COPY deploy/container deploy/container
COPY requirements/build.txt requirements/compile.txt requirements/
COPY pyproject.toml hatch_build.py README.md LICENSE ./
RUN deploy/container/build_steps.sh on-vllm /opt/llm-runtime
COPY src src
RUN deploy/container/build_steps.sh project /opt/llm-runtime
RUN groupadd --gid 10001 llm-runtime \
    && useradd --uid 10001 --gid 10001 --no-log-init --create-home --home-dir /var/lib/llm-runtime llm-runtime \
    && install -d -o 10001 -g 10001 /var/cache/llm-runtime
ENV PATH=/opt/llm-runtime/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/var/cache/llm-runtime/huggingface \
    VLLM_CACHE_ROOT=/var/cache/llm-runtime/vllm \
    TRITON_CACHE_DIR=/var/cache/llm-runtime/triton \
    LLM_RUNTIME_HOST=0.0.0.0 \
    LLM_RUNTIME_CACHE=/var/cache/llm-runtime \
    LLM_RUNTIME_BACKEND=vllm \
    LLM_RUNTIME_MODEL_PATH=Qwen/Qwen2.5-7B-Instruct
WORKDIR /var/lib/llm-runtime
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --start-interval=1s --retries=3 \
    CMD ["llm-runtime-health"]
ENTRYPOINT ["llm-runtime"]
CMD ["serve"]

FROM cuda AS ray
ARG RAY_VERSION=2.60.0
USER 0:0
WORKDIR /build
RUN deploy/container/build_steps.sh ray /opt/llm-runtime
COPY serve /var/lib/llm-runtime/serve
ENV PYTHONPATH=/var/lib/llm-runtime \
    LLM_RUNTIME_BACKEND=vllm-inprocess
WORKDIR /var/lib/llm-runtime
USER 10001:10001
HEALTHCHECK NONE
ENTRYPOINT []
CMD ["serve", "run", "serve.app:deployment"]

# The last stage is what `docker build .` makes.
FROM base AS runtime
COPY --from=build /opt/llm-runtime /opt/llm-runtime
