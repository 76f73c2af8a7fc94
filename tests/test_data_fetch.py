import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from apportion.data import fetch
from apportion.data.fetch import fetch_file
from apportion.data.sets import Download
from apportion.errors import DataError

CONTENT = bytes(range(256)) * 1000
FILES = {"/good": CONTENT, "/bad": CONTENT[::-1], "/endless": b"x" * (1 << 23)}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if self.path not in FILES:
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/endless":
            self.send_header("Content-Length", str(len(FILES[self.path])))
        self.end_headers()
        try:
            self.wfile.write(FILES[self.path])
        except OSError:
            return  # the other side has hung up, as it should

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()


@pytest.fixture
def server(monkeypatch) -> Iterator[ThreadingHTTPServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as running:
        yield running


def item(server: ThreadingHTTPServer, *paths: str) -> Download:
    base = f"http://127.0.0.1:{server.server_port}"
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    return Download("it.bin", len(CONTENT), sha256, tuple(base + path for path in paths))


def silent(file: str, done: int, total: int) -> None:
    pass


def test_a_file_with_its_checksum_is_fetched_and_progress_is_told(tmp_path, server):
    told = []
    fetch_file(item(server, "/good"), tmp_path / "new", lambda *facts: told.append(facts))
    assert (tmp_path / "new" / "it.bin").read_bytes() == CONTENT
    assert told[-1] == ("it.bin", len(CONTENT), len(CONTENT))
    assert all(0 < done <= total for _, done, total in told)


def test_a_file_that_is_there_is_not_fetched_again(tmp_path, server):
    (tmp_path / "it.bin").write_bytes(CONTENT)
    fetch_file(item(server, "/good"), tmp_path, silent)
    assert server.asked == []


def test_a_damaged_file_is_fetched_again(tmp_path, server):
    (tmp_path / "it.bin").write_bytes(CONTENT[:100])
    fetch_file(item(server, "/good"), tmp_path, silent)
    assert (tmp_path / "it.bin").read_bytes() == CONTENT


def test_addresses_are_tried_in_turn(tmp_path, server):
    fetch_file(item(server, "/lost", "/bad", "/good"), tmp_path, silent)
    assert server.asked == ["/lost", "/bad", "/good"]
    assert (tmp_path / "it.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_is_an_error_and_nothing_is_kept(tmp_path, server):
    wanted = item(server, "/bad", "/lost")
    with pytest.raises(DataError, match=r"it.bin could not be fetched") as error:
        fetch_file(wanted, tmp_path, silent)
    assert all(fact in str(error.value) for fact in (*wanted.urls, wanted.sha256, "404", str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_stop_sending_is_left(tmp_path, server):
    with pytest.raises(DataError, match="more than the 256000 bytes"):
        fetch_file(item(server, "/endless"), tmp_path, silent)
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_the_error_says_what_to_put_where(tmp_path, server):
    server.server_close()  # nobody answers at this port any more
    wanted = item(server, "/good")
    with pytest.raises(DataError, match=f"put it.bin .sha256 {wanted.sha256}, from {wanted.urls[0]}. into"):
        fetch_file(wanted, tmp_path, silent)


def test_without_pooch_the_error_says_so(tmp_path, server, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match="pip install pooch; or put it.bin"):
        fetch_file(item(server, "/good"), tmp_path, silent)


def test_all_files_of_a_set_go_into_its_folder(tmp_path, server, monkeypatch):
    monkeypatch.setitem(fetch.DOWNLOADS, "mnist", (item(server, "/good"),))
    assert fetch.fetch("mnist", tmp_path, silent) == tmp_path / "mnist"
    assert Path(tmp_path / "mnist" / "it.bin").read_bytes() == CONTENT


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(tmp_path):
    with pytest.raises(
        DataError, match="no data set 'cifar11'; there are adult, cifar10, cifar100, fashion_mnist"
    ):
        fetch.fetch("cifar11", tmp_path, silent)
