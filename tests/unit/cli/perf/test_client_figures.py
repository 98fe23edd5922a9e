"""Statistics of librdkafka in the layout of Kafka's metrics output."""

from __future__ import annotations

from kraftjbod.cli.perf.client_figures import figure_lines


def test_figure_lines_flatten_numbers_of_all_levels() -> None:
    document = '{"name": "x", "age": 3, "brokers": {"b/1": {"rtt": 0.25, "up": true}}}'
    assert list(figure_lines(document)) == [
        "",
        "Metric Name       Value",
        "age             : 3",
        "brokers:b/1:rtt : 0.250",
    ]
