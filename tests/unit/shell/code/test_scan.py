"""Parts of a folder that are synced, left out and refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from supervisor.ports.errors import Fatal
from supervisor.shell.code.scan import Scanned, scan
from supervisor.wire import code
from tests.helpers.code_site import written


def found(folder: Path, most_mib: float = 1.0) -> Scanned:
    return scan(folder, most_mib * 2**20)


def paths(folder: Path) -> set[str]:
    return {file.path for file in found(folder).manifest.files}


def refusal(folder: Path) -> str:
    with pytest.raises(Fatal) as caught:
        found(folder)
    return str(caught.value)


def test_files_with_their_contents_and_modes(tmp_path: Path) -> None:
    written(tmp_path, {"a.py": "1", "sub/run.sh": "2"})
    (tmp_path / "sub/run.sh").chmod(0o750)
    assert set(found(tmp_path).manifest.files) == {
        code.File("a.py", False, 1, code.digest_of(b"1")),
        code.File("sub/run.sh", True, 1, code.digest_of(b"2")),
    }


def test_what_is_ignored_by_itself_and_taken_back(tmp_path: Path) -> None:
    written(tmp_path, {"a.py": "", ".git/HEAD": "", "x/__pycache__/a.pyc": "", "runs/r/log": "", "x/runs/a.py": ""})
    assert paths(tmp_path) == {"a.py", "x/runs/a.py"}
    written(tmp_path, {".everstepignore": "!/runs/\nlog\n"})
    assert paths(tmp_path) == {"a.py", "x/runs/a.py", ".everstepignore"}
    written(tmp_path, {"runs/r/model.py": ""})
    assert "runs/r/model.py" in paths(tmp_path)


def test_gitignore_counts_unless_there_is_a_file_of_ours(tmp_path: Path) -> None:
    written(tmp_path, {"a.py": "", "data/x.bin": "", "keep/y.bin": "", ".gitignore": "*.bin\n!/keep/*.bin\n"})
    assert paths(tmp_path) == {"a.py", ".gitignore", "keep/y.bin"}
    written(tmp_path, {".everstepignore": "/keep/\n"})
    assert paths(tmp_path) == {"a.py", ".gitignore", ".everstepignore", "data/x.bin"}


def test_what_looks_like_a_secret_is_left_out_and_named_whatever_the_file_says(tmp_path: Path) -> None:
    names = [".env", ".env.prod", "certs/ca.pem", "certs/ca.key", "id_ed25519", ".netrc", ".aws/credentials"]
    written(tmp_path, {"a.py": "", "id_map.py": "", "key.py": "", **dict.fromkeys(names, "")})
    written(tmp_path, {".everstepignore": "!.env\n"})
    result = found(tmp_path)
    assert {file.path for file in result.manifest.files} == {"a.py", "id_map.py", "key.py", ".everstepignore"}
    assert sorted(result.secrets) == sorted([*names[:-1], ".aws/"])


def test_links_stay_inside(tmp_path: Path) -> None:
    folder = written(tmp_path / "code", {"a.py": "", "sub/b.py": ""})
    (folder / "sub/l.py").symlink_to("../a.py")
    (folder / "dir").symlink_to("sub")
    result = found(folder)
    assert set(result.manifest.links) == {code.Link("sub/l.py", "../a.py"), code.Link("dir", "sub")}
    assert {file.path for file in result.manifest.files} == {"a.py", "sub/b.py"}, "a link to a folder is not followed"
    assert code.decode(result.manifest.encode()).links


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside"])
def test_a_link_that_leads_out_is_refused_with_its_path(tmp_path: Path, target: str) -> None:
    folder = written(tmp_path / "code", {"a.py": "", "sub/b.py": ""})
    written(tmp_path, {"outside": "secret"})
    (folder / "l").symlink_to(target)
    assert str(folder / "l") in refusal(folder)
    written(folder, {".everstepignore": "/l\n"})
    assert paths(folder) == {"a.py", "sub/b.py", ".everstepignore"}


def test_a_link_by_way_of_another_that_leads_out_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "code", {"sub/b.py": "", ".everstepignore": "/hidden\n"})
    (folder / "hidden").symlink_to(tmp_path)
    (folder / "l").symlink_to("hidden/x")
    assert str(folder / "l") in refusal(folder)


def test_more_than_the_limit_is_refused_with_what_to_do(tmp_path: Path) -> None:
    written(tmp_path, {"a.py": "", "weights.bin": "x" * 2**20, "z.py": "x"})
    sentence = refusal(tmp_path)
    assert "it came to z.py" in sentence
    assert ".everstepignore" in sentence
    assert "--most-mib" in sentence


@pytest.mark.parametrize("name", ["supervisor/x.py", "agents.py", "titan_actor/__init__.py", "everstep_trainer/a.py"])
def test_a_package_that_would_be_taken_for_ours_is_refused(tmp_path: Path, name: str) -> None:
    written(tmp_path, {name: "", "a.py": ""})
    assert "would be taken for the package of this name" in refusal(tmp_path)


def test_mistakes_have_a_sentence(tmp_path: Path) -> None:
    assert "is not a folder" in refusal(tmp_path / "none")
    assert "holds no file" in refusal(tmp_path)
    written(tmp_path, {".git/x": ""})
    assert "holds no file" in refusal(tmp_path)


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff.py", os.O_CREAT))
    assert "not UTF-8" in refusal(tmp_path)


def test_a_socket_and_a_pipe_are_left_out_and_named(tmp_path: Path) -> None:
    written(tmp_path, {"a.py": ""})
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        assert sorted(found(tmp_path).others) == ["pipe", "s"]
