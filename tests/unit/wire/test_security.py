"""The security file is read strictly, and plain traffic off loopback is refused with a sentence."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.wire.security import (
    Security,
    SecurityError,
    checked,
    file_of_node,
    host_and_port,
    is_loopback,
    is_open,
    load,
    refuse_endpoint,
    refuse_listener,
)

INSECURE = Security(insecure=True, path="/x/insecure.toml")
CERTIFIED = Security(ca="/x/ca.pem", cert="/x/me.pem", key="/x/me.key", path="/x/me.toml")


def written(folder: Path, text: str) -> Path:
    file = folder / "security.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("owner", "we", "mode", "open_"),
    [
        (1000, 1000, 0o600, False), (1000, 1000, 0o400, False), (1000, 1000, 0o640, True), (1000, 1000, 0o604, True),
        (0, 1000, 0o440, False), (0, 1000, 0o640, False), (0, 1000, 0o660, True), (0, 1000, 0o444, True),
        (0, 0, 0o440, True), (0, 0, 0o400, False),
    ],
)  # fmt: skip
def test_a_secret_is_for_us_alone_or_roots_for_our_group(
    monkeypatch: pytest.MonkeyPatch, owner: int, we: int, mode: int, open_: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: we)
    assert is_open(os.stat_result((mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))) is open_


def test_no_file_is_neither_secure_nor_insecure() -> None:
    assert load("") == Security()
    assert not Security().tls
    assert Security().arguments() == []


def test_insecure_is_read_and_handed_on(tmp_path: Path) -> None:
    file = written(tmp_path, "insecure = true\n")
    security = load(file)
    assert security.insecure
    assert not security.tls
    assert security.arguments() == [f"--security={file}"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "sets nothing: give ca, cert and key"),
        ("insecure = false\n", "sets nothing"),
        ("insecure = 1\n", "insecure = 1: it must be true or false"),
        ("insecure = 'true'\n", "it must be true or false"),
        ("insecur = true\n", "there is no 'insecur'; nearest: insecure"),
        ("certificate = 'a'\n", "there is no 'certificate'; nearest: cert"),
        ("zzz = 1\n", "there is no 'zzz'; known: ca, cert, key, crl, nodes, signs, enroll, insecure"),
        ("[tls]\nca = 'a'\n", "there is no 'tls'"),
        ("ca = 3\n", "ca = 3: it must be the path of a PEM file"),
        ("ca = ''\n", "it must be the path of a PEM file"),
        ("ca = 'a'\ncert = 'b'\n", "key is missing: ca, cert and key belong together"),
        ("ca = 'a'\ninsecure = true\n", "cert, key is missing"),
        ("crl = 'a'\ninsecure = true\n", "ca, cert, key is missing"),
        ("signs = 3\n", "signs = 3: it must be the path of a PEM file"),
        ("signs = 'ca.key'\nenroll = ['10.0.0.5:1']\n", "ca, cert, key is missing"),
        ("signs = 'ca.key'\n", "ca, cert, key is missing"),
        ("ca = 'a'\ncert = 'b'\nkey = 'c'\nsigns = 'd'\n", "signs and enroll belong together"),
        ("ca = 'a'\ncert = 'b'\nkey = 'c'\nenroll = ['10.0.0.5:1']\n", "signs and enroll belong together"),
        ("enroll = []\n", r"enroll = \[\]: it must be a list of IP:PORT"),
        ("enroll = '10.0.0.5:1'\n", "it must be a list of IP:PORT"),
        ("enroll = ['cpu-01:9101']\n", "it must be a list of IP:PORT"),
        ("enroll = ['0.0.0.0:9101']\n", "it must be a list of IP:PORT"),
        ("enroll = ['10.0.0.5']\n", "it must be a list of IP:PORT"),
        ("enroll = [3]\n", "it must be a list of IP:PORT"),
        ("nodes = 3\n", "nodes = 3: it must be the path of a folder"),
        ("ca = 'nothing.pem'\ncert = 'b'\nkey = 'c'\n", r"ca = /.*/nothing\.pem cannot be used: No such file"),
        ("ca = \n", "is not valid TOML"),
        ("ca = " + "[" * 200_000, "is not valid TOML"),
    ],
)
def test_what_is_wrong_in_a_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SecurityError, match=words):
        load(written(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match=r"nothing\.toml cannot be read: No such file"):
        load(tmp_path / "nothing.toml")


def test_what_is_no_pem(tmp_path: Path) -> None:
    for name in ("ca.pem", "me.pem", "me.key"):
        (tmp_path / name).write_text("no certificate")
    with pytest.raises(SecurityError, match=r"ca = .*ca\.pem cannot be used"):
        load(written(tmp_path, "ca = 'ca.pem'\ncert = 'me.pem'\nkey = 'me.key'\n"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "localhost", "::1", "[::1]"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.77.0.1", "0.0.0.0", "", "::", "[fe80::1]", "etcd-0", "localhost.example.org", "127.0.0.1.nip.io"])  # fmt: skip
def test_off_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("endpoint", "security", "refused"),
    [
        ("127.0.0.1:2379", Security(), ""),
        ("http://127.0.0.1:2379", Security(), ""),
        ("127.0.0.1:2379", CERTIFIED, ""),
        ("10.0.0.1:2379", INSECURE, ""),
        ("https://10.0.0.1:2379", CERTIFIED, ""),
        ("10.0.0.1:2379", Security(), "off loopback .* insecure = true"),
        ("etcd-0:2379", Security(), "off loopback"),
        ("10.0.0.1:2379", CERTIFIED, "though there are certificates: write https://"),
        ("http://10.0.0.1:2379", CERTIFIED, "though there are certificates"),
        ("https://10.0.0.1:2379", Security(), "needs a certificate"),
        ("https://127.0.0.1:2379", INSECURE, "needs a certificate"),
    ],
)
def test_endpoints(endpoint: str, security: Security, refused: str) -> None:
    sentence = refuse_endpoint(endpoint, security)
    if not refused:
        assert sentence is None
    else:
        assert sentence is not None
        assert re.search(refused, sentence)


@pytest.mark.parametrize("security", [Security(), INSECURE, CERTIFIED])
@pytest.mark.parametrize(
    "endpoint",
    ["", "127.0.0.1", "garbage", "h:abc", "h:99999", "h:0", ":1", "::1", "h:", "https://h", "h:\u00b2", "h:" + "1" * 5000, "h/x:1"],
)  # fmt: skip
def test_what_is_no_endpoint_is_told_so_before_anything_else(endpoint: str, security: Security) -> None:
    sentence = refuse_endpoint(endpoint, security)
    assert sentence is not None
    assert sentence.startswith(f"{endpoint!r} is not an etcd endpoint: give HOST:PORT")


@pytest.mark.parametrize(
    ("endpoint", "parts"),
    [
        ("10.0.0.1:2379", ("10.0.0.1", 2379)),
        (" https://etcd-0.a_b:1/ ", ("etcd-0.a_b", 1)),
        ("http://[::1]:65535", ("[::1]", 65535)),
    ],
)
def test_what_is_an_endpoint(endpoint: str, parts: tuple[str, int]) -> None:
    assert host_and_port(endpoint) == parts


@pytest.mark.parametrize(
    ("host", "security", "refused"),
    [
        ("127.0.0.1", Security(), False),
        ("10.0.0.1", Security(), True),
        ("0.0.0.0", Security(), True),
        ("10.0.0.1", INSECURE, False),
        ("10.0.0.1", CERTIFIED, False),
    ],
)
def test_listeners(host: str, security: Security, refused: bool) -> None:
    assert (refuse_listener("the metrics port", host, security) is not None) is refused


def test_all_that_is_given_is_checked(tmp_path: Path) -> None:
    file = written(tmp_path, "insecure = true\n")
    assert checked(file, ["10.0.0.1:1", "10.0.0.2:1"], [("this", "0.0.0.0")]).insecure
    with pytest.raises(SecurityError, match=r"10\.0\.0\.2"):
        checked("", ["127.0.0.1:1", " 10.0.0.2:1"])
    with pytest.raises(SecurityError, match=r"this at 0\.0\.0\.0"):
        checked("", ["127.0.0.1:1"], [("this", "0.0.0.0")])


def test_a_node_has_a_file_of_its_own(tmp_path: Path) -> None:
    certified = Security(ca="ca", cert="cert", key="key", path=str(tmp_path / "supervisor.toml"))
    with pytest.raises(SecurityError, match=r"node n1 needs a certificate of its own: .*node-n1\.toml is missing"):
        file_of_node(certified, "n1")
    (tmp_path / "node-n1.toml").touch()
    assert file_of_node(certified, "n1") == str(tmp_path / "node-n1.toml")
    elsewhere = replace(certified, nodes=str(tmp_path / "shared"))
    with pytest.raises(
        SecurityError, match=r"shared/node-n1\.toml is missing \(deploy/certificates\.sh .*shared node-n1"
    ):
        file_of_node(elsewhere, "n1")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "node-n1.toml").touch()
    assert file_of_node(elsewhere, "n1") == str(tmp_path / "shared" / "node-n1.toml")
    assert file_of_node(INSECURE, "n1") == INSECURE.path
    assert file_of_node(Security(), "n1") == ""
