from assay.report.draw import SPREAD, Column, table
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


def noted(record, *seeds: int, **cuts) -> str:
    found = rows([record(seed=seed, metrics={"R2": 0.5 + 0.2 * seed}) for seed in seeds])
    section = Section("toy")
    table(section, "scores", found, [Column("R2", "R2", **cuts), Column("n", lambda row: row.n)], note="R2: held out.")
    return section.tables[0].note


def test_the_note_says_what_an_interval_is_where_there_is_one(record):
    assert noted(record, 0).startswith("R2: held out.")
    assert noted(record, 0, 1).startswith("± half the 95 % Student t interval over seeds. R2: held out.")
    assert noted(record, 0, 1, share=True).startswith(f"{SPREAD}, [low, high] where it is not symmetric. R2")
