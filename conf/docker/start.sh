#!/bin/sh
# start.sh DAEMON CONFIG: formats a node that was never formatted, then becomes its daemon.
# A node that has its metadata directory is never formatted again: an empty data disk beside it
# is a disk that went missing, and the daemon itself says so.
set -eu
daemon=$1
config=$2
metadata_dir=$(sed -n 's/^metadata\.log\.dir=//p' "$config")
if [ ! -e "$metadata_dir/meta.properties" ]; then
  kraftjbod-storage format --cluster-id "$CLUSTER_ID" --config "$config"
fi
exec "kraftjbod-$daemon" "$config"
