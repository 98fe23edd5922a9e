"""`kraftjbod-pipeline audit`: compares acknowledged records with the records in the cluster."""
