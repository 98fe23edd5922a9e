"""``tabbed_table`` formats the tables of Kafka's newer tools."""

from kraftjbod.cli.terminal.tables import tabbed_table


def test_tabbed_table_pads_cells_and_ends_each_with_a_tab() -> None:
    assert tabbed_table(["A", "Bc"], [["long", "1"]]) == "A   \tBc\t\nlong\t1 \t"
    assert tabbed_table(["A", "Bc"], []) == "A\tBc\t"
