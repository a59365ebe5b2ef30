"""Files take their place once they are whole, and nothing but plain files is replaced."""

import os
import stat
from pathlib import Path

import pytest

from basinax import FIRE, read_config, to_config, write_config
from basinax.config.files import check_creatable, check_plain, key_of, replacing, stamp_of


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(path, text="new"):
    with replacing(path) as partial:
        partial.write_text(text)


NAMES = {
    "short": "a.txt",
    "no ending": "POSCAR",
    "two endings": "a.extxyz.gz",
    "as long as can be": "a" * 248 + ".extxyz",
    "one long ending": "a." + "b" * 253,
    "two endings, one long": "a." + "b" * 246 + ".traj",
    "many bytes a letter": "\N{LATIN SMALL LETTER E WITH ACUTE}" * 125 + ".json",
    "no text": os.fsdecode(b"caf\xe9.extxyz"),
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_takes_its_place_under_any_name(name, is_there):
    if is_there:
        Path(name).write_text("old")
    check_creatable(name)
    with replacing(name) as partial:
        partial.write_text("new")
        assert Path(name).exists() == is_there
        assert partial.suffix == Path(name).suffix or len(name) > 200
    assert os.listdir() == [name]
    assert Path(name).read_text() == "new"


def test_what_fails_leaves_what_was_there_and_nothing_beside_it():
    Path("a.db").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing("a.db") as partial:
        partial.write_text("half")
        partial.with_name(partial.name + ".lock").write_text("")
        raise KeyboardInterrupt
    assert os.listdir() == ["a.db"]
    assert Path("a.db").read_text() == "old"


def test_a_folder_that_is_missing_is_said_by_the_name_that_was_given():
    with pytest.raises(FileNotFoundError) as error:
        put("missing/a.csv")
    assert str(error.value).endswith("'missing/a.csv'")


def test_two_at_a_time_have_files_of_their_own():
    with replacing("a.txt") as first, replacing("a.txt") as second:
        first.write_text("first")
        second.write_text("second")
    assert Path("a.txt").read_text() == "first"
    assert os.listdir() == ["a.txt"]


@pytest.mark.parametrize("target", ["target", "folder/target"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_its_target_is_written(target, is_there):
    Path("folder").mkdir()
    if is_there:
        Path(target).write_text("old")
    Path("link").symlink_to("hop")
    Path("hop").symlink_to(target)
    check_creatable("link")
    put("link")
    assert Path("link").is_symlink()
    assert Path("hop").is_symlink()
    assert Path(target).read_text() == "new"


def test_permissions_of_what_was_there_stay():
    Path("a").write_text("old")
    Path("a").chmod(0o604)
    put("a")
    assert stat.S_IMODE(Path("a").stat().st_mode) == 0o604


OBSTACLES = {
    "a folder": (lambda: Path("x").mkdir(), "x is a folder"),
    "a pipe": (lambda: os.mkfifo("x"), "x is a named pipe: expected a plain file"),
    "a link to a pipe": (
        lambda: (os.mkfifo("pipe"), Path("x").symlink_to("pipe")),
        "x is a named pipe",
    ),
    "a link to a device": (lambda: Path("x").symlink_to(os.devnull), "x is a device"),
    "a link to itself": (lambda: Path("x").symlink_to("x"), "x cannot be written: Too many"),
    "a link to no folder": (lambda: Path("x").symlink_to("no/y"), "x cannot be written: No such"),
}


def what_is_there() -> dict:
    found = {name: os.lstat(name) for name in os.listdir()}
    return {name: (x.st_mode, x.st_ino, x.st_mtime_ns) for name, x in found.items()}


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_is_no_plain_file_is_refused_and_stays(name):
    make, message = OBSTACLES[name]
    make()
    before = what_is_there()
    with pytest.raises(OSError, match=message):
        check_creatable("x")
    with pytest.raises(OSError, match=r"^(?!.*partial)"):
        put("x")
    assert what_is_there() == before


def test_a_folder_may_have_to_be_made_for_a_file():
    Path("a").write_text("old")
    check_creatable("new/deep/x")
    assert os.listdir() == ["a"]
    for name, message in {
        "a/x": "a/x cannot be written: Not a",
        "a/b/x": "a/b/x cannot be",
    }.items():
        with pytest.raises(OSError, match=message):
            check_creatable(name)
    Path("x").symlink_to("no/y")
    with pytest.raises(OSError, match="x cannot be written: No such"):
        check_creatable("x")


def test_devices_are_refused():
    with pytest.raises(OSError, match="is a device"):
        check_plain(os.devnull)


def test_a_name_that_is_too_long_is_found():
    with pytest.raises(OSError, match="cannot be written: File name too long"):
        check_creatable("a" * 256)


def test_a_file_that_is_protected_is_refused(monkeypatch):
    Path("a").write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(PermissionError, match="a is write-protected"):
        check_creatable("a")


def test_all_names_of_a_file_have_one_key():
    Path("folder").mkdir()
    Path("a").write_text("")
    os.link("a", "folder/hard")
    Path("soft").symlink_to("folder/hard")
    Path("elsewhere").symlink_to("folder")
    Path("new").symlink_to("folder/b")
    same = ["a", "./a", "folder/hard", "soft", "elsewhere/hard", Path("a").resolve()]
    assert len({key_of(path) for path in same}) == 1
    assert len({key_of(path) for path in ("folder/b", "elsewhere/b", "new")}) == 1
    assert len({key_of(path) for path in ("no/b", "no/../no/b")}) == 1
    assert len({key_of(path) for path in ("a", "b", "folder/b", "folder", "no/b")}) == 5


def test_a_stamp_changes_with_its_file():
    stamps = [stamp_of("a")]
    for text in ("old", "other", "other"):
        put("a", text)
        stamps.append(stamp_of("a"))
    assert len(set(stamps)) == 4


@pytest.mark.parametrize("ending", ["json", "toml"])
def test_configs_are_whole_or_as_they_were(ending, monkeypatch):
    name = f"c.{ending}"
    write_config(to_config(FIRE()), name)
    written = Path.write_text

    def full(path, text, **how):
        written(path, text[:5], **how)
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space left"):
        write_config({"name": "adam"}, name)
    assert os.listdir() == [name]
    assert read_config(name)["name"] == "fire"
