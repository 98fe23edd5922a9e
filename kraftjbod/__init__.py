"""A log cluster that speaks Kafka, in which every disk is its own failure domain.

Read ARCHITECTURE.md beside this file first; it maps every room and file.
"""
