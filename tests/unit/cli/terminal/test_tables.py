"""The table of Kafka's newer tools."""

from kraftjbod.cli.terminal.tables import tabbed_table


def test_cells_are_as_wide_as_the_widest_and_end_with_a_tab() -> None:
    assert tabbed_table(["A", "Bc"], [["long", "1"]]) == "A   \tBc\t\nlong\t1 \t"
    assert tabbed_table(["A", "Bc"], []) == "A\tBc\t"
