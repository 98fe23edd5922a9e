#!/bin/sh
# replace-disk.sh BROKER DIR: takes an empty disk in where another one was, once the broker serves.
# Its replicas come back from their peers. A disk that held the last in-sync replica of a partition
# is not given up: then the directory stays offline, and the line below says what to do.
set -eu
broker=$1
dir=$2
address=127.0.0.1:9092
tries=0
until kraftjbod-health --bootstrap-server "$address" >/dev/null 2>&1; do
  tries=$((tries + 1))
  if [ "$tries" -ge 300 ]; then
    echo "replace-disk: the broker did not serve in time; $dir stays offline" >&2
    exit 1
  fi
  sleep 1
done
kraftjbod-log-dirs --bootstrap-server "$address" --forget "$broker:$dir"
exec kraftjbod-log-dirs --bootstrap-server "$address" --add "$broker:$dir"
