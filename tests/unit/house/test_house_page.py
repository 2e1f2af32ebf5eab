"""docs/house.md is true: the ten files of its reading, its tables of rooms and folders, its picture, its words."""

import re
from pathlib import Path

import house_picture
from test_rooms import FLOORS, TRAIN_FLOORS

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "openrlhf_shear"
PAGE = (ROOT / "docs/house.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)/` \|", text, re.M)


def test_the_reading_is_ten_files_of_under_2500_lines_together():
    names = re.findall(r"^\| \d+ \| `([^`]+)` \| \w", section("The afternoon's reading"), re.M)
    assert len(names) == len(set(names)) == 10
    assert sum(len((PACKAGE / name).read_text().splitlines()) for name in names) < 2500


def test_the_tables_have_every_room_and_folder_in_the_order_of_imports():
    rooms, folders = section("Rooms").split("`train/` has floors too")
    listed, floor_of = first_cells(rooms), {room: number for number, floor in enumerate(FLOORS) for room in floor}
    assert sorted(listed) == sorted(floor_of)
    assert [floor_of[room] for room in listed] == sorted(floor_of[room] for room in listed)
    assert ("", *first_cells(folders)) == TRAIN_FLOORS


def test_the_picture_is_of_todays_imports():
    assert house_picture.PICTURE.read_text() == house_picture.picture(), "python scripts/house_picture.py"


def test_the_files_that_the_words_name_exist():
    names = re.findall(r"`([\w/]+\.py)[:`]", section("Words"))
    assert len(names) > 10 and [name for name in names if not (PACKAGE / name).is_file()] == []
