"""What librdkafka counts, as Kafka's tools print metrics."""

from __future__ import annotations

from kraftjbod.cli.perf.client_figures import figure_lines


def test_numbers_of_all_levels_in_one_table() -> None:
    document = '{"name": "x", "age": 3, "brokers": {"b/1": {"rtt": 0.25, "up": true}}}'
    assert list(figure_lines(document)) == [
        "",
        "Metric Name       Value",
        "age             : 3",
        "brokers:b/1:rtt : 0.250",
    ]
