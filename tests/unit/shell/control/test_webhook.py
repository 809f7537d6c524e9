"""The leader alone sends to a webhook, and nothing waits for the webhook."""

from __future__ import annotations

import http.server
import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.decision import Decision
from supervisor.core.model.kinds import Rung
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Observed
from supervisor.core.model.spec import RunSpec
from supervisor.core.report.notifications import Notice
from supervisor.ports.errors import Retryable
from supervisor.shell.control import loop, webhook
from supervisor.shell.control.engine_driver import EngineDriver
from supervisor.shell.control.loop import Loop
from supervisor.shell.control.webhook import Notifier, send, url_in
from supervisor.shell.metrics.telemetry import Telemetry
from supervisor.wire import keys
from supervisor.wire.logged import JsonLine
from supervisor.wire.records import RunRecord, decode, encode
from tests.unit.shell.control.test_loop import Engine, Term, launched
from tests.unit.shell.records import INCIDENT, MEMORY, SPEC

NOTICE = Notice(about="i1-3", run="run", text="run run asks for another allocation", incident="i1", rung=3)
SECRET = "T0KEN"  # pragma: allowlist secret


class Hook:
    """A webhook's server on loopback; it does not answer while `held`, and answers with `code`."""

    def __init__(self, folder: Path) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.code, self.followed = 200, False
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hook.followed = True

            def do_POST(self) -> None:
                hook.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                hook.asked.set()
                hook.go_on.wait(30)
                self.send_response(hook.code)
                if hook.code // 100 == 3:
                    self.send_header("Location", f"http://localhost:{hook.server.server_port}/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None: ...  # the client has given up

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        self.file = folder / "webhook"
        self.file.write_text(f"http://127.0.0.1:{self.server.server_port}/{SECRET}\n")
        self.file.chmod(0o600)

    def close(self) -> None:
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def leads(store: MemoryStore) -> Term:
    """The term of the next leader, after the end of the one before."""
    store.commit({}, [keys.LEADER])
    return Term(store)


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Hook]:
    made = Hook(tmp_path)
    yield made
    made.close()


def test_it_is_told_as_json_with_a_text(hook: Hook) -> None:
    store = MemoryStore()
    assert send(store, Term(store), NOTICE, str(hook.file))
    (body,) = hook.bodies
    assert (body["text"], body["run"], body["incident"], body["rung"]) == (NOTICE.text, "run", "i1", 3)
    item = store.get(keys.notice("run", "i1-3"))
    assert item is not None
    assert decode(item.value, Notice) == NOTICE


def test_of_two_leaders_one_tells_it(hook: Hook) -> None:
    store = MemoryStore()
    assert send(store, leads(store), NOTICE, str(hook.file))
    assert not send(store, leads(store), NOTICE, str(hook.file))
    assert send(store, leads(store), replace(NOTICE, about="i1-4"), str(hook.file))
    assert len(hook.bodies) == 2


def test_who_leads_no_more_tells_nothing(hook: Hook) -> None:
    store = MemoryStore()
    old = leads(store)
    leads(store)
    assert not send(store, old, NOTICE, str(hook.file))
    assert hook.bodies == []


def test_while_the_store_is_away_it_is_in_the_log_alone(hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    term = Term(store)
    store.fail_next(1, Retryable)
    with caplog.at_level(logging.ERROR):
        assert not send(store, term, NOTICE, str(hook.file))
    assert NOTICE.text in caplog.text
    assert hook.bodies == []


def test_what_is_not_taken_is_sent_again_by_the_same_and_the_url_is_in_no_log(
    hook: Hook, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "AGAIN_S", (0.01, 0.02))
    store = MemoryStore()
    hook.code = 500
    with caplog.at_level(logging.DEBUG):
        assert not send(store, leads(store), NOTICE, str(hook.file))
        assert len(hook.bodies) == 3
        assert not send(store, leads(store), NOTICE, str(hook.file))
    assert len(hook.bodies) == 3, "the next leader leaves it to who has claimed it"
    assert "the webhook did not accept it (HTTPError), again in 0.01 s" in caplog.text
    assert "the webhook did not accept it (HTTPError), given up" in caplog.text
    assert SECRET not in caplog.text


def test_what_is_not_sent_says_in_the_log_whose_it_is(
    hook: Hook, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has the fields as JSON, for each of the ways in which a notice fails."""
    monkeypatch.setattr(webhook, "AGAIN_S", (0.01,))
    notice = replace(NOTICE, group=0, node="n4")
    store, hook.code = MemoryStore(), 500
    with caplog.at_level(logging.ERROR):
        term = Term(store)
        assert not send(store, term, notice, str(hook.file.parent / "none"))
        store.fail_next(1, Retryable)
        assert not send(store, term, notice, str(hook.file))
        assert not send(store, term, notice, str(hook.file))
        waiting = Notifier(store, term)
        for _ in range(webhook.MOST_WAITING + 1):
            waiting.tell(notice, str(hook.file))
    ours = [json.loads(JsonLine().format(r)) for r in caplog.records if r.name == webhook.__name__]
    assert len({line["text"].split("(")[0] for line in ours}) == 4
    for line in ours:
        assert (line["run"], line["group"], line["incident"], line["node"]) == ("run", 0, "i1", "n4")


def test_a_webhook_that_is_back_gets_it(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "AGAIN_S", (0.01,) * 3000)
    store, port = MemoryStore(), hook.server.server_port
    hook.close()
    found: list[bool] = []
    sender = threading.Thread(target=lambda: found.append(send(store, Term(store), NOTICE, str(hook.file))))
    sender.start()
    back = http.server.ThreadingHTTPServer(("127.0.0.1", port), hook.server.RequestHandlerClass)
    serving = threading.Thread(target=back.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    sender.join(30)
    back.shutdown()
    back.server_close()
    serving.join()
    assert found == [True]
    assert [body["text"] for body in hook.bodies] == [NOTICE.text]


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed_nowhere_and_is_no_answer(
    hook: Hook, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(webhook, "AGAIN_S", ())
    hook.code = code
    store = MemoryStore()
    assert not send(store, Term(store), NOTICE, str(hook.file))
    assert len(hook.bodies) == 1
    assert not hook.followed


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "webhook"
    file.write_text("https://chat/secret\n")
    file.chmod(mode)
    with pytest.raises(ValueError, match=f"chmod 600 {file}") as error:
        url_in(file)
    assert "secret" not in str(error.value)


def test_who_is_stopped_waits_for_no_webhook(hook: Hook) -> None:
    hook.code = 500
    store = MemoryStore()
    notifier = Notifier(store, Term(store))
    notifier.start()
    notifier.tell(NOTICE, str(hook.file))
    assert hook.asked.wait(30)
    began = time.monotonic()
    notifier.stop()
    assert time.monotonic() - began < webhook.DEADLINE_S, "not the pauses, a minute in all"
    assert not notifier._thread.is_alive()


def test_one_that_does_not_answer_is_given_up(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "DEADLINE_S", 0.2)
    monkeypatch.setattr(webhook, "AGAIN_S", ())
    hook.go_on.clear()
    store = MemoryStore()
    assert not send(store, Term(store), NOTICE, str(hook.file))


def test_nobody_waits_for_it(hook: Hook) -> None:
    hook.go_on.clear()
    store = MemoryStore()
    notifier = Notifier(store, Term(store))
    notifier.start()
    for number in range(3 * webhook.MOST_WAITING):
        notifier.tell(replace(NOTICE, about=f"i{number}-3"), str(hook.file))
    assert hook.asked.wait(30)
    assert len(hook.bodies) == 1, "the first one is not answered yet"
    hook.go_on.set()
    eventually(lambda: len(hook.bodies) > 5, 30, "the others follow")
    notifier.stop()


def test_what_waits_when_the_term_ends_is_sent_before(hook: Hook) -> None:
    store = MemoryStore()
    notifier = Notifier(store, Term(store))
    notifier.tell(NOTICE, str(hook.file))
    notifier.start()
    notifier.stop()
    assert len(hook.bodies) == 1
    Notifier(store, Term(store)).stop()  # of a term that never began


@pytest.mark.parametrize(
    "text",
    ["", "ftp://x/y", "file:///etc/passwd", "https://", "http://a b", "http://a\nhttp://b", "http://[", "nonsense"],
)
def test_a_file_without_one_url(tmp_path: Path, text: str) -> None:
    (tmp_path / "hook").write_text(text)
    with pytest.raises(ValueError, match="does not hold one http or https URL"):
        url_in(tmp_path / "hook")


def test_a_file_that_is_not_there_is_said_and_nothing_is_claimed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    assert not send(store, Term(store), NOTICE, str(tmp_path / "none"))
    assert "cannot be read here (No such file or directory)" in caplog.text
    assert store.get(keys.notice("run", "i1-3")) is None


# --- the loop ---


@pytest.mark.parametrize("file", ["", "/etc/hook"])
def test_the_loop_tells_what_it_has_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    store = launched(tmp_path)
    spec = replace(SPEC, policy=replace(SPEC.policy, webhook_file=file))
    store.put(keys.spec("run"), encode(RunRecord(spec=spec, run_dir=str(tmp_path), launched_unix_s=0.0)))
    incident = replace(INCIDENT, id="i2", rung=Rung.REALLOCATE)
    seen: list[tuple[str, str, bool]] = []

    def third(observed: Observed, spec: RunSpec, memory: Memory) -> Decision:
        return Decision(memory=replace(MEMORY, decisions=5), incidents=(incident,))

    def tell(notice: Notice, where: str) -> None:
        seen.append((notice.about, where, store.get(keys.incident("run", "i2")) is not None))

    monkeypatch.setattr(loop, "decide", third)
    driver = EngineDriver(store, Engine())  # type: ignore[arg-type]
    leader = Loop(store, Term(store), driver, Telemetry(), tell=tell)
    leader.step()
    assert seen == ([("i2-3", file, True)] if file else [])


def halts(store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the next decision halt the run; later decisions change nothing."""
    spec = replace(SPEC, policy=replace(SPEC.policy, webhook_file="/etc/hook"))
    store.put(keys.spec("run"), encode(RunRecord(spec=spec, run_dir=str(tmp_path), launched_unix_s=0.0)))
    incident = replace(INCIDENT, id="i2", rung=Rung.STOP, state="halted")

    def stop(observed: Observed, spec: RunSpec, memory: Memory) -> Decision:
        if memory.phase == "halted":
            return Decision(memory=memory)
        return Decision(memory=replace(memory, decisions=5, phase="halted"), incidents=(incident,))

    monkeypatch.setattr(loop, "decide", stop)


@pytest.mark.parametrize("applied", [True, False])
def test_a_decision_whose_fate_was_not_known_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    store = launched(tmp_path)
    halts(store, tmp_path, monkeypatch)
    seen: list[str] = []
    driver = EngineDriver(store, Engine())  # type: ignore[arg-type]
    leader = Loop(store, Term(store), driver, Telemetry(), tell=lambda notice, _: seen.append(notice.about))
    store.fail_next(1, Retryable, applied=applied)
    leader.step()
    assert seen == [], "whether it is so is not known"
    for _ in range(3):
        leader.step()
    assert seen == ["i2-4"]


def test_what_the_leader_before_did_not_come_to_tell_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = launched(tmp_path)
    halts(store, tmp_path, monkeypatch)
    seen: list[str] = []
    for tell in (None, lambda notice, _: seen.append(notice.about)):
        store.commit({}, [keys.LEADER])
        driver = EngineDriver(store, Engine())  # type: ignore[arg-type]
        Loop(store, Term(store), driver, Telemetry(), tell=tell).step()
    assert seen == ["i2-4"]
