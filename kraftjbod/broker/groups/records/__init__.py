"""Records of groups in ``__consumer_offsets``, in Kafka's format."""
