"""What groups keep in ``__consumer_offsets``, in Kafka's form."""
