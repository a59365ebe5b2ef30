"""The cells that are tested every day leave nothing out."""

import itertools
from collections import Counter

import pytest

from cover import chosen_cells, cover, exhaustive, named_daily, one_in


@pytest.mark.parametrize("strength", [1, 2, 3])
@pytest.mark.parametrize("lengths", [[1], [3], [2, 5], [4, 3, 2], [3, 3, 3, 2], [0, 2]], ids=str)
def test_every_combination_of_so_many_values_is_met(lengths, strength):
    chosen = chosen_cells(lengths, strength)
    assert len(set(chosen)) == len(chosen)
    for columns in itertools.combinations(range(len(lengths)), min(strength, len(lengths))):
        met = {tuple(cell[c] for c in columns) for cell in chosen}
        expected = set(itertools.product(*(range(lengths[c]) for c in columns)))
        assert met == expected or 0 in lengths


@pytest.mark.parametrize(
    ("lengths", "strength", "count"), [([12, 7, 2], 1, 12), ([3, 3, 2], 2, 10), ([12, 3, 2], 2, 36)]
)
def test_there_are_few_cells(lengths, strength, count):
    assert len(chosen_cells(lengths, strength)) == count


def test_cells_that_are_not_chosen_are_there_with_a_mark():
    names, cells = cover("a, b", ["x", "y"], {"one": 1, "two": 2}, strength=1)
    assert names == "a, b"
    assert {cell.id: cell.values for cell in cells} == {
        f"{a}-{b}": (a, value) for a in "xy" for b, value in {"one": 1, "two": 2}.items()
    }
    marked = [cell.id for cell in cells if cell.marks]
    assert marked == ["x-two", "y-one"]


def test_rows_take_turns():
    assert Counter(at for _, at in chosen_cells([9, 2], 1)) == {0: 5, 1: 4}


def test_one_in_so_many_is_tested_every_day_and_marks_remain():
    rows = one_in(2, ["a", exhaustive("b", id="b"), "c", "d", "e"], first=1)
    assert [row.id for row in rows] == list("abcde")
    assert [row.id for row in rows if not row.marks] == ["c", "e"]
    assert all(len(row.marks) < 2 for row in rows)


def test_cases_that_are_not_named_have_a_mark_and_unknown_names_are_refused():
    rows = named_daily({"a": 1, "b": 2}, ["b"])
    assert [(row.id, row.values, len(row.marks)) for row in rows] == [
        ("a", (1,), 1),
        ("b", (2,), 0),
    ]
    with pytest.raises(ValueError, match="no case has the name c"):
        named_daily({"a": 1}, ["a", "c"])
