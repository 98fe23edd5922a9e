# One image for both daemons and all tools. Suits the classic builder.
ARG BASE_IMAGE=debian:12-slim
FROM ${BASE_IMAGE}
RUN command -v python3 >/dev/null && python3 -c "import ensurepip" 2>/dev/null \
 || { apt-get update && apt-get install -y --no-install-recommends \
      python3 python3-venv ca-certificates && rm -rf /var/lib/apt/lists/*; }
COPY requirements.lock pyproject.toml README.md /src/
COPY kraftjbod /src/kraftjbod
# The lock file holds the development tools too, so here it only pins versions.
RUN python3 -m venv /opt/kraftjbod \
 && /opt/kraftjbod/bin/pip install --no-cache-dir -c /src/requirements.lock /src \
 && rm -rf /src
COPY conf/docker /etc/kraftjbod
# The volumes take over the owner of these mount points.
RUN useradd --system --uid 10001 kraftjbod \
 && mkdir -p /data/metadata /data/disk-1 /data/disk-2 /data/disk-3 \
 && chown -R kraftjbod /data
USER kraftjbod
ENV PATH=/opt/kraftjbod/bin:$PATH PYTHONUNBUFFERED=1
STOPSIGNAL SIGTERM
ENTRYPOINT ["/etc/kraftjbod/start.sh"]
