#!/bin/sh
# start.sh controller|broker: the entrypoint of the image; becomes that daemon.
# start.sh certificates ...: runs kraftjbod-local certificates with these options, and ends.
#
# * With SECURED=yes the lines of DAEMON.secured.properties follow those of DAEMON.properties. The keys
#   of the node are in /security/DAEMON-NODE_ID.
# * A node is formatted once: never again where its metadata directory was, and never where one of
#   its disks was. An empty disk beside a metadata directory is a disk that went missing, and the
#   daemon keeps it offline.
# * A controller leaves a mark on a volume of its own. Where that says that the cluster has lived, and
#   the metadata directory is empty, its volume was lost: an empty one is no replacement for it.
# * Only a disk in memory is known to be empty for good after a stop: it is replaced, as an operator
#   would replace a broken disk, once the broker serves.
set -eu
daemon=$1
[ "$daemon" != certificates ] || exec kraftjbod-local "$@"
config=/run/kraftjbod/$daemon.properties
templates=/etc/kraftjbod/$daemon.properties
[ "${SECURED:-}" != yes ] || templates="$templates /etc/kraftjbod/$daemon.secured.properties"
# shellcheck disable=SC2086  # Two names are two words.
sed -e "s/@NODE_ID@/${NODE_ID:-}/g" -e "s/@HOST_PORT@/${HOST_PORT:-}/g" \
  -e "s|@CLUSTER_HOSTS@|${CLUSTER_HOSTS:?is not set: say the hosts of all brokers and controllers}|g" \
  -e "s/@CONTROLLER_VOTERS@/${CONTROLLER_VOTERS:?is not set: say ID@HOST:PORT of each controller}/g" \
  $templates >"$config"

# The last value counts.
key() { sed -n "s/^$1=//p" "$config" | tail -n 1; }
is_in_memory() { awk -v dir="$1" '$2 == dir && $3 == "tmpfs" { found = 1 } END { exit !found }' /proc/mounts; }

mark=/data/cluster/controller-formatted
if [ ! -e "$(key metadata.log.dir)/meta.properties" ]; then
  if [ "$daemon" = controller ] && [ "$(cat "$mark" 2>/dev/null)" = "$CLUSTER_ID" ] &&
    [ "${REPLACE_LOST_METADATA:-}" != yes ]; then
    echo "start.sh: the controller of cluster $CLUSTER_ID had metadata, and $(key metadata.log.dir)" \
      "is empty: its volume was lost. Put it back (docs/metadata-backup.md). If it is gone for good, set" \
      "REPLACE_LOST_METADATA=yes once and have each broker forget it with" \
      "kraftjbod-storage forget-metadata." >&2
    exit 65
  fi
  set --
  if [ "$daemon" = controller ] && [ "${SECURED:-}" = yes ]; then
    users=/security/controller-$NODE_ID/users.properties
    # The tool reads the secret from the file; its command line has the name only.
    for user in $(sed -n 's/^\([a-z]*\)=.*/\1/p' "$users"); do
      set -- "$@" --add-scram "\${file:$users:$user}"
    done
  fi
  kraftjbod-storage format --cluster-id "$CLUSTER_ID" --config "$config" \
    ${REPLACE_LOST_METADATA:+--replace-lost} "$@"
elif [ "$daemon" = broker ]; then
  for dir in $(key log.dirs | tr , ' '); do
    if is_in_memory "$dir" && [ ! -e "$dir/meta.properties" ]; then
      # Twice in the background, so that init becomes its parent and not the broker.
      (/etc/kraftjbod/replace-disk.sh "$(key node.id)" "$dir" &)
    fi
  done
fi
if [ "$daemon" = controller ] && [ -d "${mark%/*}" ]; then
  echo "$CLUSTER_ID" >"$mark"
fi
exec "kraftjbod-$daemon" "$config"
