# docker build -t socialx .                                          with the CPU build of torch
# docker build -t socialx --build-arg TORCH=cu130 .     for a CUDA card; TOOLS="g++" for --compile
# docker run --rm -v "$PWD:/data" socialx inspect metr_la.h5         files of this folder; add --gpus all for the card
FROM python:3.12-slim

# Only --compile needs a C compiler.
ARG TORCH=cpu
ARG TOOLS=""
ARG EXTRAS=holidays,serve

RUN test -z "$TOOLS" || (apt-get update && apt-get install -y --no-install-recommends $TOOLS && rm -rf /var/lib/apt/lists/*)

WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url "https://download.pytorch.org/whl/$TORCH" torch
COPY pyproject.toml README.md LICENSE ./
COPY socialx socialx
RUN pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]"

RUN useradd --create-home --uid 1000 socialx
USER socialx
WORKDIR /data
EXPOSE 8000
ENTRYPOINT ["socialx"]
CMD ["--help"]
