"""`kraftjbod-pipeline report`: one HTML page about the cluster's storage."""
