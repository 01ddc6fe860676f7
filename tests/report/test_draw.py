from assay.report.draw import Column, table
from assay.report.rows import rows
from assay.report.section import Section


def drawn(record, *columns: Column):
    found = rows(
        [record(model={"name": name}, noise=noise, metrics={"R2": noise}) for name in "ab" for noise in (0.1, 0.2)],
        names={"model": "model"},
    )
    section = Section("toy")
    table(section, "scores", found, columns)
    return section.tables[0]


def test_names_settings_and_leading_columns_come_first_and_the_rest_on_demand(record):
    columns = Column("R2", "R2", lead=True, ceiling=lambda row: 1.0), Column("n", lambda row: row.n)
    found = drawn(record, *columns)
    assert found.lead == ("model", "noise", "R2")
    assert found.columns == ("model", "noise", "R2", "n")


def test_a_leading_column_without_any_value_leads_nothing(record):
    assert drawn(record, Column("R2", "R2", lead=True), Column("none", "none", lead=True)).lead == (
        "model",
        "noise",
        "R2",
    )


def test_where_no_column_leads_all_are_shown(record):
    assert drawn(record, Column("R2", "R2")).lead == ()
