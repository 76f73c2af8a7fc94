"""Guards: what is hostile or odd is refused with the caller's error, quickly, and writers lose nothing."""

import gzip
import io
import json
import multiprocessing
import os
import signal
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from apportion import _writing
from apportion._untrusted import (
    check_json,
    check_number,
    check_sha256,
    parse_json,
    parse_npy,
    parse_tensors,
    printable,
    printable_lines,
    read_bytes,
    read_gzip,
    read_json,
    read_npy,
    read_npz,
    read_tar,
    read_tensors,
)
from apportion._writing import (
    atomic_file,
    atomic_folder,
    atomic_write,
    check_writable_place,
    is_locked,
    open_lock,
)
from apportion.errors import ModelError, RunError

posix = pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX")


# --- text and numbers


@given(st.text())
def test_printable_text_has_no_control_characters_and_a_bounded_length(text):
    shown = printable(text, 50)
    assert shown.isprintable()
    assert len(shown) <= 51
    if text.isprintable() and len(text) <= 50:
        assert shown == text


def test_printable_text_neither_steers_the_terminal_nor_grows_with_its_input():
    assert printable("\x1b[2Jgone\u202e") == r"\x1b[2Jgone\u202e"
    assert len(printable("x" * 200_000_000)) < 300
    assert printable_lines("one\n\x1b[2Jtwo") == "one\n\\x1b[2Jtwo"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, -1, True, "1", None, [1], 10**400])
def test_a_number_out_of_its_range_is_refused(value):
    with pytest.raises(ModelError, match="the rate"):
        check_number(value, "the rate", low=0, high=1, error=ModelError)


def test_a_number_in_its_range_is_accepted():
    check_number(0.5, "it", low=0, high=1, error=ModelError)
    check_number(3, "it", integer=True, error=ModelError)
    with pytest.raises(ModelError, match="whole number"):
        check_number(0.5, "it", integer=True, error=ModelError)


# --- reading


@posix
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder", "nothing", "device"])
def test_only_regular_files_are_read_and_nothing_is_waited_for(tmp_path, kind):
    path = tmp_path / "it"
    make: dict[str, Callable[[], Any]] = {
        "link": lambda: (tmp_path / "real").write_text("{}") and path.symlink_to(tmp_path / "real"),
        "dangling link": lambda: path.symlink_to(tmp_path / "gone"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "nothing": lambda: None,
        "device": lambda: path.symlink_to("/dev/zero"),
    }
    make[kind]()
    with pytest.raises(RunError, match=str(path)):
        read_bytes(path, 100, error=RunError)
    if kind != "link":
        with pytest.raises(RunError, match=str(path)):
            read_bytes(path, 100, error=RunError, follow_symlinks=True)


@posix
def test_arrays_and_weights_are_read_from_links_only_where_that_is_asked_for(tmp_path):
    np.save(tmp_path / "real.npy", np.ones(2))
    (tmp_path / "link.npy").symlink_to(tmp_path / "real.npy")
    (tmp_path / "link.npz").symlink_to(tmp_path / "real.npy")
    with pytest.raises(RunError, match="symbolic link"):
        read_npy(tmp_path / "link.npy", error=RunError)
    with pytest.raises(RunError, match="symbolic link"):
        read_npz(tmp_path / "link.npz", 100, error=RunError)
    with pytest.raises(RunError, match="symbolic link"):
        read_tensors(tmp_path / "link.npz", {}, error=RunError)
    assert read_npy(tmp_path / "link.npy", error=RunError, follow_symlinks=True).tolist() == [1, 1]


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "it"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5, error=RunError) == b"12345"
    with pytest.raises(RunError, match="5 bytes, more than the 4"):
        read_bytes(path, 4, error=RunError)


BAD_JSON = [
    b"{", b"\xff", b"NaN", b"[Infinity]", b"1e999", b"[" * 100_000, b"[" * 17 + b"]" * 17, b'"\\ud800"',
    b'{"\\udfff": 1}', b"1" * 5000, b"",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_JSON)
def test_what_is_no_plain_json_is_refused(tmp_path, text):
    (tmp_path / "it.json").write_bytes(text)
    with pytest.raises(RunError, match="it.json is not valid JSON"):
        read_json(tmp_path / "it.json", error=RunError)


SCHEMA = {
    "name": str, "epochs": int, "rate?": (float, int, None), "terms": {"*": (int, float)}, "rows?": [[int]],
    "done?": (int, bool),
}  # fmt: skip
GOOD = {"name": "a", "epochs": 2, "rate": None, "terms": {"x": 0.5}, "rows": [[1, 2], []], "done": True}


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1}, {"epochs": 1.0}, {"epochs": True}, {"epochs": 1 << 63}, {"rate": "fast"},
        {"rate": True}, {"terms": []}, {"terms": {"x": "y"}}, {"terms": {"x": 1e101}}, {"rows": [1]},
        {"rows": [["1"]]}, {"done": 1.0}, {"terms": None},
    ],
)  # fmt: skip
def test_json_of_another_shape_is_refused_with_its_place(change):
    check_json(GOOD, SCHEMA, "it", error=RunError)
    (key,) = change
    with pytest.raises(RunError, match=f"it: {key}"):
        check_json(GOOD | change, SCHEMA, "it", error=RunError)


def test_json_may_lack_what_is_optional_and_hold_more_than_is_named():
    needed = {key: GOOD[key] for key in ("name", "epochs", "terms")}
    check_json(needed | {"more": [None]}, SCHEMA, "it", error=RunError)
    for key in needed:
        with pytest.raises(RunError, match=f"no '{key}'"):
            check_json({k: v for k, v in needed.items() if k != key}, SCHEMA, "it", error=RunError)


def test_a_damaged_text_of_megabytes_makes_a_short_message():
    text = json.dumps({"name": "\x1b[2J" * 10_000_000, "epochs": "x" * 10_000_000, "terms": {}})
    with pytest.raises(RunError) as caught:
        parse_json(text, "it", SCHEMA, error=RunError)
    assert len(str(caught.value)) < 1000


# --- tensors and arrays

WEIGHTS = {
    "a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16),
    "n": torch.tensor(3), "image": torch.zeros(0, 4, dtype=torch.uint8),
}  # fmt: skip


def expected(**changes: Any) -> dict[str, torch.Tensor]:
    return {name: value.to("meta") for name, value in (WEIGHTS | changes).items()}


def test_tensors_come_back(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(save(WEIGHTS))
    found = read_tensors(path, expected(), error=RunError)
    assert all(torch.equal(found[name], value) for name, value in WEIGHTS.items())
    assert list(parse_tensors(save(WEIGHTS), "it", error=RunError)[0]) == sorted(WEIGHTS)


@pytest.mark.parametrize(
    "change",
    [
        {"a": torch.zeros(3, 2)}, {"a": torch.zeros(2, 3, dtype=torch.float16)}, {"more": torch.zeros(1)},
        {"a": torch.full((2, 3), torch.nan)},
    ],
)  # fmt: skip
def test_tensors_other_than_expected_are_refused(tmp_path, change):
    path = tmp_path / "w.safetensors"
    path.write_bytes(save(WEIGHTS | change))
    with pytest.raises(RunError, match=next(iter(change))):
        read_tensors(path, expected(), error=RunError)


def test_a_header_that_claims_much_is_refused_before_anything_is_allocated(tmp_path):
    path, huge = tmp_path / "w.safetensors", 10**15
    header = json.dumps({"a": {"dtype": "F32", "shape": [huge], "data_offsets": [0, 4 * huge]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    claimed = {"a": torch.empty(huge, device="meta")}
    for wanted in (claimed, expected()):
        with pytest.raises(RunError):
            read_tensors(path, wanted, error=RunError)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80\x04c__builtin__\neval\n.", b"\xff" * 8, save(WEIGHTS)[:-1], save(WEIGHTS) + b"x",
        b"\x02" + bytes(7) + b"[]", b"\x09" + bytes(7) + b'{"a": []}',
    ],
)  # fmt: skip
def test_what_is_no_file_of_tensors_is_refused(tmp_path, data):
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    with pytest.raises(RunError, match="w.safetensors"):
        read_tensors(path, expected(), error=RunError)
    with pytest.raises(RunError, match="it"):
        parse_tensors(data, "it", error=RunError)


def npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float32])
@pytest.mark.parametrize("shape", [(3,), (2, 4), (0, 5), (1, 2, 3, 4), ()])
def test_arrays_come_back(tmp_path, dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    (tmp_path / "it.npy").write_bytes(npy(array))
    np.savez_compressed(tmp_path / "it.npz", one=array, two=array)
    both = read_npz(tmp_path / "it.npz", 10_000, error=RunError)
    mapped = read_npy(tmp_path / "it.npy", error=RunError)
    for found in (mapped, parse_npy(npy(array), "it", error=RunError), both["one"], both["two"]):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == dtype
    assert mapped.flags.writeable


def test_arrays_that_are_cut_claim_too_much_or_hold_objects_are_refused(tmp_path):
    good = npy(np.zeros((2, 4)))
    claims = good.replace(b"(2, 4)", b"(9, 9)")
    objects = io.BytesIO()
    np.save(objects, np.array([{}]), allow_pickle=True)
    unknown = [good.replace(b"<f8", descr) for descr in (b"|S8", b"<f1")]
    for data in (good[:-1], good + b"x", claims, objects.getvalue(), *unknown, b""):
        (tmp_path / "it.npy").write_bytes(data)
        with pytest.raises(RunError, match="it"):
            parse_npy(data, "it", error=RunError)
        with pytest.raises(RunError, match="it.npy"):
            read_npy(tmp_path / "it.npy", error=RunError)


# --- archives


def tar_of(path: Path, *members: tuple[str, bytes, bytes]) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(content)
            info.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            tar.addfile(info, io.BytesIO(content))
    return path


ZEROS = bytes(20_000_000)
FILE = tarfile.REGTYPE


def test_named_files_of_an_archive_are_read_and_none_is_written(tmp_path):
    path = tar_of(
        tmp_path / "it.tar.gz", ("../../one", FILE, b"1"), ("/elsewhere/two", FILE, b"2"), ("x", FILE, b"")
    )
    assert read_tar(path, {"one": 5, "two": 5}, error=RunError) == {"one": b"1", "two": b"2"}
    assert os.listdir(tmp_path) == ["it.tar.gz"]


@pytest.mark.parametrize(
    "members",
    [
        [("one", kind, b"")]
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
    ]
    + [
        [("a/one", FILE, b"1"), ("b/one", FILE, b"2")],
        [("one", FILE, ZEROS)],
        [("beside", FILE, ZEROS), ("one", FILE, b"1")],
        [("two", FILE, b"")],
    ],
)
def test_an_archive_with_links_twins_or_too_much_in_it_is_refused(tmp_path, members):
    path = tar_of(tmp_path / "it.tar.gz", *members)
    with pytest.raises(RunError, match="it.tar.gz"):
        read_tar(path, {"one": 100}, error=RunError)


def test_a_sparse_file_of_a_terabyte_is_refused(tmp_path):
    info = tarfile.TarInfo("one")
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(10**12), "GNU.sparse.numblocks": "1"}
    with tarfile.open(tmp_path / "it.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)
    with pytest.raises(RunError, match="it.tar.gz"):
        read_tar(tmp_path / "it.tar.gz", {"one": 100}, error=RunError)


def test_small_archives_that_unpack_to_much_are_refused(tmp_path):
    (tmp_path / "it.gz").write_bytes(gzip.compress(ZEROS, 1))
    with pytest.raises(RunError, match="it.gz"):
        read_gzip(tmp_path / "it.gz", 1000, error=RunError)
    with zipfile.ZipFile(tmp_path / "it.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", ZEROS)
    with pytest.raises(RunError, match="it.npz"):
        read_npz(tmp_path / "it.npz", 1000, error=RunError)


def test_a_file_with_another_checksum_is_refused(tmp_path):
    (tmp_path / "it").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    check_sha256(tmp_path / "it", empty, error=RunError)
    with pytest.raises(RunError, match="is damaged"):
        check_sha256(tmp_path / "it", "0" * 64, error=RunError)


# --- writing


def test_files_and_folders_are_written_whole(tmp_path):
    atomic_write(tmp_path / "new" / "it", b"1", error=RunError)
    atomic_write(tmp_path / "new" / "it", b"2", error=RunError)
    assert (tmp_path / "new" / "it").read_bytes() == b"2"
    (tmp_path / "empty").mkdir()
    for name in ("empty", "folder", "f" * 254):
        with atomic_folder(tmp_path / name, error=RunError) as folder:
            (folder / "a").write_text("a")
        assert os.listdir(tmp_path / name) == ["a"]
    assert sorted(os.listdir(tmp_path)) == ["empty", "f" * 254, "folder", "new"]


def test_a_failure_leaves_what_was_there(tmp_path):
    atomic_write(tmp_path / "it", b"old", error=RunError)
    with suppress(KeyError), atomic_file(tmp_path / "it", error=RunError) as partial:
        partial.write_bytes(b"half")
        raise KeyError
    with suppress(KeyError), atomic_folder(tmp_path / "folder", error=RunError) as partial:
        (partial / "a").write_bytes(b"half")
        raise KeyError
    assert os.listdir(tmp_path) == ["it"]
    assert (tmp_path / "it").read_bytes() == b"old"


@posix
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_a_killed_save_leaves_is_not_hidden_and_cleared_by_the_next(tmp_path, what):
    write = {"file": atomic_file, "folder": atomic_folder}[what]

    def save_and_die() -> None:
        with write(tmp_path / "it", error=RunError) as partial:
            if what == "folder":
                (partial / "a").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=save_and_die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (left,) = os.listdir(tmp_path)
    assert not left.startswith(".")
    with write(tmp_path / "it", error=RunError) as partial:
        if what == "folder":
            assert os.listdir(partial) == []
    assert os.listdir(tmp_path) == ["it"]


def test_saves_are_synced_files_first_then_their_folder(tmp_path, monkeypatch):
    synced: list[str] = []
    plain = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        plain(descriptor)

    if not sys.platform.startswith("linux"):
        pytest.skip("names of open files are read from /proc")
    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_folder(tmp_path / "it", error=RunError) as partial:
        (partial / "a").write_text("a")
    assert [Path(name).name for name in synced] == ["a", partial.name, tmp_path.name]


@posix
@pytest.mark.parametrize("kind", ["link", "dangling link", "file", "full folder", ".", "long", "denied"])
def test_a_place_that_cannot_take_a_folder_is_found_out_before(tmp_path, monkeypatch, kind):
    place = tmp_path / "out"
    (tmp_path / "real").mkdir()
    if kind == "link":
        place.symlink_to(tmp_path / "real")
    elif kind == "dangling link":
        place.symlink_to(tmp_path / "gone")
    elif kind == "file":
        place.write_text("thesis")
    elif kind == "full folder":
        place.mkdir()
        (place / "thesis").write_text("years of work")
    elif kind == ".":
        monkeypatch.chdir(tmp_path / "real")
        place = Path()
    elif kind == "long":
        place = tmp_path / "new" / ("x" * 256)
    else:
        place = Path("/proc/out")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ModelError):
        check_writable_place(place, folder=True, error=ModelError)
    with pytest.raises(ModelError), atomic_folder(place, error=ModelError):
        pass
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "new"] == before


def test_a_place_that_can_be_written_is_left_as_it_was(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("old")
    for name in ("empty", "new/deep/model", "x" * 254):
        check_writable_place(tmp_path / name, folder=True, error=ModelError)
    for name in ("file", "new/deep/file", "x" * 254):
        check_writable_place(tmp_path / name, error=ModelError)
    assert sorted(os.listdir(tmp_path)) == ["empty", "file"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_writing, "_sync", full)
    with pytest.raises(RunError, match="the disk is full; make room"):
        atomic_write(tmp_path / "it", b"1", error=RunError)
    assert os.listdir(tmp_path) == []


# --- locks


def test_a_lock_is_held_by_one_at_a_time_and_leaves_nothing(tmp_path):
    path = tmp_path / "lock"
    assert not is_locked(path, error=RunError)
    with open_lock(path, error=RunError):
        assert is_locked(path, error=RunError)
        with pytest.raises(RunError, match="in use"), open_lock(path, error=RunError):
            pass
    with open_lock(path, error=RunError):
        pass
    assert os.listdir(tmp_path) == []


@posix
def test_a_lock_is_free_once_its_process_was_killed(tmp_path):
    def hold() -> None:
        with open_lock(tmp_path / "lock", error=RunError):
            time.sleep(60)

    process = multiprocessing.get_context("fork").Process(target=hold)
    process.start()
    while not is_locked(tmp_path / "lock", error=RunError):
        time.sleep(0.01)
    process.kill()
    process.join()
    assert (tmp_path / "lock").exists()
    assert not is_locked(tmp_path / "lock", error=RunError)
    with open_lock(tmp_path / "lock", error=RunError):
        pass


@posix
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder", "file"])
def test_what_stands_in_the_place_of_a_lock_is_refused_and_kept(tmp_path, kind):
    path, users = tmp_path / "lock", tmp_path / "thesis"
    users.write_text("years of work")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.hardlink_to(users)
    else:
        path.symlink_to(users if kind == "link" else tmp_path / "gone")
    with pytest.raises(RunError, match="not a lock"), open_lock(path, error=RunError):
        pass
    with pytest.raises(RunError, match="not a lock"):
        is_locked(path, error=RunError)
    assert users.read_text() == "years of work"
    assert not (tmp_path / "gone").exists()
