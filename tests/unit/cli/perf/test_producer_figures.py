"""Lines of Kafka's producer-perf-test, which scripts parse."""

from __future__ import annotations

from kraftjbod.cli.perf.producer_figures import ProducerFigures


def test_producer_figures_have_kafkas_interval_and_total_lines() -> None:
    figures = ProducerFigures(4, interval_ms=1_000, now_ms=0)
    assert figures.record(10, 1024 * 1024, 10) == ()
    assert figures.record(990, 1024 * 1024, 1_000) == [
        "2 records sent, 2.0 records/sec (2.00 MB/sec), 500.0 ms avg latency, 990.0 ms max latency."
    ]
    figures.is_quiet = True
    assert figures.record(20, 0, 2_000) == []
    figures.record(30, 0, 2_000)
    assert figures.total(2_500) == (
        "4 records sent, 1.600000 records/sec (0.80 MB/sec), 262.50 ms avg latency, "
        "990.00 ms max latency, 30 ms 50th, 990 ms 95th, 990 ms 99th, 990 ms 99.9th."
    )


def test_producer_figures_name_steady_state_and_print_infinity_or_nan() -> None:
    figures = ProducerFigures(1, interval_ms=0, now_ms=0, is_steady=True)
    assert figures.record(3, 5, 0) == [
        "In steady state.",
        "1 records sent, Infinity records/sec (Infinity MB/sec), 3.0 ms avg latency, "
        "3.0 ms max latency.",
    ]
    assert figures.total(10).startswith("1 steady state records sent, 100.000000 records/sec")
    nothing = ProducerFigures(1, interval_ms=1, now_ms=0).total(0)
    assert nothing.startswith("0 records sent, NaN records/sec (NaN MB/sec), NaN ms avg latency")
