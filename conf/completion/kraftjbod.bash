# Completion of kraftjbod's tools in bash. A tool prints its own script, and completes for it (click).

_kraftjbod() {
  local name=${1##*/}
  name=_${name//-/_}
  eval "$(env "${name^^}_COMPLETE=bash_source" "$1")" && "${name}_completion" "$@"
}

complete -F _kraftjbod \
  kraftjbod-acls kraftjbod-broker-api-versions kraftjbod-cluster kraftjbod-configs \
  kraftjbod-console-consumer kraftjbod-console-producer kraftjbod-consumer-groups \
  kraftjbod-consumer-perf-test kraftjbod-delete-records kraftjbod-drain kraftjbod-dump-log \
  kraftjbod-features kraftjbod-gameday kraftjbod-get-offsets kraftjbod-health \
  kraftjbod-leader-election kraftjbod-local kraftjbod-log-dirs kraftjbod-metadata-quorum \
  kraftjbod-pipeline kraftjbod-producer-perf-test kraftjbod-reassign-partitions \
  kraftjbod-storage kraftjbod-topics kraftjbod-transactions
