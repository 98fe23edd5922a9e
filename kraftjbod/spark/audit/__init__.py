"""`kraftjbod-pipeline audit`: what producers were acknowledged, beside what the cluster holds."""
