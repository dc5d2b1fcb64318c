"""Files are written where they really are; mode, owner and links stay."""

import errno
import os
import stat

import pytest

from comm_plan.errors import DocumentError, OutputError
from comm_plan.plans import files
from comm_plan.plans.files import check_writable, read_text, write_atomically


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("old")
    return path


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_link_is_followed_and_stays(tmp_path, target):
    link = tmp_path / "folder" / "link.json"
    link.parent.mkdir()
    link.symlink_to("../plan.json")
    write_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_link_to_what_is_not_there_yet_makes_it(tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to("absent.json")
    write_atomically(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "absent.json").read_text() == "new"


def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OutputError, match="circle"):
        write_atomically(tmp_path / "a", "new")


@pytest.mark.parametrize("before", [0o600, 0o640, 0o666])
def test_the_mode_stays(target, before):
    target.chmod(before)
    write_atomically(target, "new")
    assert (mode(target), target.read_text()) == (before, "new")


def test_a_new_file_has_the_mode_of_all_new_files(tmp_path):
    write_atomically(tmp_path / "new.json", "new")
    (tmp_path / "other").touch()
    assert mode(tmp_path / "new.json") == mode(tmp_path / "other")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays(target):
    os.chown(target, 12, 34)
    write_atomically(target, "new")
    assert (target.stat().st_uid, target.stat().st_gid) == (12, 34)


@pytest.mark.parametrize("write", [check_writable, lambda p: write_atomically(p, "x")])
def test_what_is_read_only_is_refused_and_stays(tmp_path, target, write):
    target.chmod(0o444)
    with pytest.raises(OutputError, match="read-only: chmod"):
        write(target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_on_a_full_disk_what_is_there_stays_and_nothing_else(
    tmp_path, target, monkeypatch
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "_make_alike", full)
    with pytest.raises(OutputError, match="cannot be written: no space left"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_device_is_written_to():
    write_atomically(os.devnull, "new")
    assert not stat.S_ISREG(os.stat(os.devnull).st_mode)  # noqa: PTH116


def test_a_pipe_without_a_name_of_its_own_is_written_to():
    """Such as ``/dev/stdout`` before ``|``, and ``>(command)`` of a shell."""
    reading, writing = os.pipe()
    called = f"/dev/fd/{writing}"
    check_writable(called)
    write_atomically(called, "new")
    os.close(writing)
    with open(reading) as pipe:  # noqa: PTH123
        assert pipe.read() == "new"


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "absent/plan.json"])
def test_paths_that_cannot_be_are_refused(tmp_path, path):
    for write in (check_writable, lambda path: write_atomically(path, "x")):
        with pytest.raises(OutputError, match="cannot be written"):
            write(tmp_path / path)
    with pytest.raises(DocumentError, match="cannot be read"):
        read_text(tmp_path / path)


def test_what_is_larger_than_a_document_may_be_is_refused(target, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE_NBYTES", 2)
    with pytest.raises(DocumentError, match="larger than 1 GiB"):
        read_text(target)
