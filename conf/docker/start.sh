#!/bin/sh
# start.sh controller|broker: the entrypoint of the image; becomes that daemon.
#
# * A node is formatted once: never again where its metadata directory was, and never where one of
#   its disks was. An empty disk beside a metadata directory is a disk that went missing, and the
#   daemon keeps it offline.
# * Only a disk in memory is known to be empty for good after a stop: it is replaced, as an operator
#   would replace a broken disk, once the broker serves.
set -eu
daemon=$1
config=/run/kraftjbod/$daemon.properties
sed -e "s/@NODE_ID@/${NODE_ID:-}/g" -e "s/@HOST_PORT@/${HOST_PORT:-}/g" \
  "/etc/kraftjbod/$daemon.properties" >"$config"

key() { sed -n "s/^$1=//p" "$config"; }
is_in_memory() { awk -v dir="$1" '$2 == dir && $3 == "tmpfs" { found = 1 } END { exit !found }' /proc/mounts; }

if [ ! -e "$(key metadata.log.dir)/meta.properties" ]; then
  kraftjbod-storage format --cluster-id "$CLUSTER_ID" --config "$config"
elif [ "$daemon" = broker ]; then
  for dir in $(key log.dirs | tr , ' '); do
    if is_in_memory "$dir" && [ ! -e "$dir/meta.properties" ]; then
      # Twice in the background, so that init becomes its parent and not the broker.
      (/etc/kraftjbod/replace-disk.sh "$(key node.id)" "$dir" &)
    fi
  done
fi
exec "kraftjbod-$daemon" "$config"
