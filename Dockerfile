# One image for both daemons and all tools; `make image` builds it and brings dist/wheels along, so
# that this needs no network where the base has Python. Suits the classic builder.
ARG BASE_IMAGE=debian:12-slim
FROM ${BASE_IMAGE} AS python
RUN command -v python3 >/dev/null \
 || { apt-get update && apt-get install -y --no-install-recommends python3 \
      && rm -rf /var/lib/apt/lists/*; }

FROM python AS build
LABEL kraftjbod.stage=build
COPY dist/wheels /wheels
# pip runs out of its wheel and stays behind here.
RUN python3 -m venv --without-pip /opt/kraftjbod \
 && python3 "$(echo /wheels/pip-*.whl)/pip" --python /opt/kraftjbod/bin/python \
      install -q --no-index --find-links=/wheels kraftjbod

FROM python
COPY --from=build /opt/kraftjbod /opt/kraftjbod
COPY conf/docker/controller.properties conf/docker/broker.properties \
     conf/docker/controller.secured.properties conf/docker/broker.secured.properties \
     conf/docker/start.sh conf/docker/replace-disk.sh /etc/kraftjbod/
# Volumes take over the owner of these mount points. Those in /security are of
# docker-compose.secured.yml.
RUN useradd --system --uid 10001 kraftjbod \
 && mkdir -p /run/kraftjbod /data/metadata /data/cluster /data/disk-1 /data/disk-2 /data/disk-3 \
 && for name in authority users controller-100 controller-101 controller-102 broker-1 broker-2 broker-3; \
    do mkdir -p -m 750 "/security/$name"; done \
 && chown -R kraftjbod /run/kraftjbod /data /security
USER kraftjbod
ENV PATH=/opt/kraftjbod/bin:$PATH PYTHONUNBUFFERED=1
STOPSIGNAL SIGTERM
ENTRYPOINT ["/etc/kraftjbod/start.sh"]
