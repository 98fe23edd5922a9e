#!/usr/bin/env bash
# cluster.sh: the cluster of docker-compose.yml, from nothing, for make and the tests.
#
#   install     as root: Debian's docker.io and docker-compose, where there is no engine or compose
#   engine      start dockerd where none answers; its pid and log are in run/docker/
#   stop-engine stop that dockerd, and no other
#   image       build the image, unless it is there and made of the same files
#   up          image, start, and wait until every service is healthy
#   down [-v]   stop in order, remove containers and network; with -v the volumes, too
#   compose ... any other command of compose
#   clean       remove all of it: containers, network, volumes, images
#
# down and clean stop that dockerd, too, once nothing runs on it any more.
#
# BASE_IMAGE names the base to build on: Debian 12 or newer, or any that has Python 3.11 or newer.
# If it is not given, root on a machine with apt makes one of Debian's packages, from
# DEBIAN_MIRROR; others build on debian:12-slim from the registry.
# COMPOSE_PROJECT_NAME and KRAFTJBOD_IMAGE keep several clusters apart, BROKER_n_PORT their ports.
# SECURED=1 adds docker-compose.secured.yml; up then copies the settings of users to run/docker/users.
# MAX_OPEN_FILES is what each container may open, where the engine cannot give it 65536.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

readonly RUN=run/docker USERS=run/docker/users${COMPOSE_PROJECT_NAME:+-$COMPOSE_PROJECT_NAME} PYTHON=.venv/bin/python
readonly OWN_BASE=kraftjbod-base:bookworm
readonly IMAGE=${KRAFTJBOD_IMAGE:-kraftjbod}
readonly ENGINE_S=60 HEALTHY_S=180 OPEN_FILES=65536

say() { echo "compose: $*" >&2; }
fail() { say "$*"; exit 1; }
has() { command -v "$1" >/dev/null; }
is_root() { [ "$(id -u)" = 0 ]; }
answers() { docker version >/dev/null 2>&1; }
has_compose() { docker compose version >/dev/null 2>&1 || has docker-compose; }

compose() {
  local files=(-f docker-compose.yml)
  [ -z "${SECURED:-}" ] || files+=(-f docker-compose.secured.yml)
  if docker compose version >/dev/null 2>&1; then docker compose "${files[@]}" "$@"
  else docker-compose "${files[@]}" "$@"; fi
}

install_packages() {
  is_root && has apt-get || fail "$* missing; only root can install them, and only with apt-get"
  say "installing $*"
  apt-get update -q >/dev/null 2>&1 || say "apt-get update failed; trying with the lists that are there"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null 2>&1 \
    || fail "apt-get install $* failed; run it by hand to see why"
}

install() {
  local missing=()
  # An engine of another kind, near or far, is as good.
  has dockerd || answers || missing+=(docker.io)
  has docker && has_compose || has docker-compose || missing+=(docker-compose)
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
}

# --- engine ---------------------------------------------------------------------------------------

our_dockerd() {
  local pid
  pid=$(cat $RUN/dockerd.pid 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] \
    && echo "$pid"
}

wait_for_engine() {
  local deadline=$((SECONDS + ENGINE_S))
  while ((SECONDS < deadline)); do
    answers && return
    kill -0 "$1" 2>/dev/null || return 1
    sleep 0.5
  done
  kill "$1" && wait "$1"
  return 1
}

# Some machines let containers have a network, but no rules of a packet filter.
start_dockerd() {
  local flags
  mkdir -p $RUN
  for flags in "" "--iptables=false"; do
    # shellcheck disable=SC2086  # No flags are no words.
    setsid nohup dockerd --pidfile "$PWD/$RUN/dockerd.pid" $flags >$RUN/dockerd.log 2>&1 </dev/null &
    if wait_for_engine $!; then
      say "started dockerd $flags (its log is $RUN/dockerd.log)"
      return
    fi
    say "dockerd $flags does not run here: $(grep -v level=info $RUN/dockerd.log | tail -n 1)"
  done
  fail "no engine can run here"
}

engine() {
  install
  answers && return
  is_root && has dockerd || fail "no docker engine answers; start it, or let me in its group"
  if [ -d /run/systemd/system ]; then
    systemctl start docker && answers || fail "systemctl start docker brought no engine"
  else
    start_dockerd
  fi
}

stop_engine() {
  local pid
  pid=$(our_dockerd) || return 0
  say "stopping the dockerd that was started here"
  kill "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
}

# --- image ----------------------------------------------------------------------------------------

sources_sum() {
  { echo "${BASE_IMAGE:-}"
    find Dockerfile .dockerignore pyproject.toml requirements.lock README.md LICENSE docs conf/docker kraftjbod \
      conf/compile_scans.py conf/wheel_hook.py \
      -type f ! -path '*/__pycache__/*' ! -name '_byte_scans_*' ! -name cluster.sh | LC_ALL=C sort | xargs cksum
  } | cksum | tr ' ' -
}

make_base() {
  local root=$PWD/$RUN/base
  has debootstrap || install_packages debootstrap
  say "making a base image of Debian's packages, a minute"
  # shellcheck disable=SC2064  # The path of now is meant.
  trap "rm -rf --one-file-system '$root'" EXIT
  rm -rf --one-file-system "$root"
  mkdir -p $RUN
  # Without a mirror it takes its own.
  debootstrap --variant=minbase --include=python3 bookworm "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} \
    >$RUN/debootstrap.log 2>&1 \
    || fail "debootstrap failed: $(tail -n 1 $RUN/debootstrap.log)"
  tar -C "$root" --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' \
    --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' \
    --exclude='./var/log/*' -c . | docker import - $OWN_BASE >/dev/null
}

choose_base() {
  if [ -n "${BASE_IMAGE:-}" ]; then
    base=$BASE_IMAGE
  elif docker image inspect $OWN_BASE >/dev/null 2>&1; then
    base=$OWN_BASE
  elif is_root && has apt-get; then
    make_base
    base=$OWN_BASE
  else
    base=debian:12-slim
  fi
}

# Wheels for the Python of the base, whatever this machine has. A base without one gets Debian 12's.
fetch_wheels() {
  local version arch platforms=() own pure=false n
  version=$(docker run --rm --entrypoint python3 "$1" -c \
    'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=3.11
  case $(docker version --format '{{.Server.Arch}}') in
    arm64) arch=aarch64 ;;
    *) arch=x86_64 ;;
  esac
  for n in {17..36}; do platforms+=(--platform "manylinux_2_${n}_$arch"); done
  # What this machine compiles fits its own kind only.
  own=$($PYTHON -c 'import os, sys; print("%d.%d" % sys.version_info[:2], os.uname().machine)')
  [ "$own" = "$version $arch" ] || pure=true
  rm -rf dist/wheels
  $PYTHON -m pip --version >/dev/null 2>&1 || $PYTHON -m ensurepip -q
  HATCH_BUILD_NO_HOOKS=$pure $PYTHON -m pip wheel -q --no-deps -w dist/wheels .
  $PYTHON -m pip download -q -d dist/wheels -c requirements.lock --only-binary=:all: \
    --implementation cp --python-version "$version" "${platforms[@]}" \
    --platform "manylinux2014_$arch" --platform "linux_$arch" \
    "pip==$($PYTHON -m pip --version | cut -d' ' -f2)" dist/wheels/kraftjbod-*.whl
}

image() {
  local sources base
  engine
  sources=$(sources_sum)
  if [ "$(docker image inspect -f '{{index .Config.Labels "kraftjbod.sources"}}' "$IMAGE" 2>/dev/null)" = "$sources" ]
  then return; fi
  choose_base
  say "building $IMAGE on $base"
  fetch_wheels "$base"
  mkdir -p $RUN
  docker build --build-arg BASE_IMAGE="$base" --label kraftjbod.sources="$sources" -t "$IMAGE" . \
    >$RUN/build.log 2>&1 || { tail -n 5 $RUN/build.log >&2; fail "docker build failed"; }
  docker image prune -f --filter label=kraftjbod.stage=build >/dev/null
  # The image that this one took the name of.
  docker image prune -f --filter label=kraftjbod.sources >/dev/null
  say "$IMAGE is built, $(docker images --format '{{.Size}}' "$IMAGE")"
}

# --- cluster --------------------------------------------------------------------------------------

# Prints the services that are not healthy. The one that creates certificates has ended by then.
unhealthy() {
  compose ps -a -q | xargs docker inspect \
    -f '{{with .State.Health}}{{.Status}}{{else}}healthy{{end}} {{index .Config.Labels "com.docker.compose.service"}}' \
    | sed -n '/^healthy /!p'
}

# A dockerd without CAP_SYS_RESOURCE gives containers no more descriptors than it has itself.
limit_open_files() {
  local pid most
  [ -z "${MAX_OPEN_FILES:-}" ] && pid=$(our_dockerd) || return 0
  most=$(awk '/^Max open files/ { print $5 }' "/proc/$pid/limits")
  [ "$most" != unlimited ] && ((most < OPEN_FILES)) || return 0
  say "dockerd may open $most files here, and so may each container; $OPEN_FILES are usual"
  export MAX_OPEN_FILES=$most
}

up() {
  local deadline waiting
  image
  limit_open_files
  compose up -d || fail "could not start it; where a port is taken, choose others:" \
    "make compose-up BROKER_1_PORT=9192 BROKER_2_PORT=9193 BROKER_3_PORT=9194"
  deadline=$((SECONDS + HEALTHY_S))
  while ((SECONDS < deadline)); do
    waiting=$(unhealthy)
    if [ -z "$waiting" ]; then
      say "up and healthy; brokers: $(addresses)"
      copy_users
      say "try: bin/kraftjbod-topics --bootstrap-server 127.0.0.1:${BROKER_1_PORT:-9092}" \
        "${SECURED:+--command-config $USERS/admin.properties }--list"
      return
    fi
    sleep 0.5
  done
  compose logs --tail 5 >&2
  fail "not healthy after $HEALTHY_S s: $waiting"
}

# The files have passwords, so that only their owner may read them.
copy_users() {
  [ -n "${SECURED:-}" ] || return 0
  rm -rf $USERS
  (umask 077 && docker cp "$(compose ps -a -q certificates):/security/users" $USERS) >/dev/null
  chown -R "$(id -u):$(id -g)" $USERS 2>/dev/null || true
  say "settings of users: $USERS/admin.properties and client.properties"
}

addresses() {
  echo "127.0.0.1:${BROKER_1_PORT:-9092},127.0.0.1:${BROKER_2_PORT:-9093},127.0.0.1:${BROKER_3_PORT:-9094}"
}

down() {
  answers || fail "no docker engine answers, so nothing runs on one"
  compose down "$@"
  [ -n "$(docker ps -q)" ] || stop_engine
}

clean() {
  if has docker && answers && has_compose; then
    SECURED=1 compose down -v --remove-orphans
    docker image rm -f "$IMAGE" $OWN_BASE >/dev/null 2>&1 || true
    docker image prune -f --filter label=kraftjbod.stage=build >/dev/null
    [ -z "$(docker ps -q)" ] || return 0
  fi
  stop_engine
}

case ${1:-} in
  install | engine | image | up | clean) "$1" ;;
  stop-engine) stop_engine ;;
  down | compose) "$@" ;;
  *) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 2 ;;
esac
