"""A certificate is signed for a node of a grant, by its secret, and each other request is refused."""

from __future__ import annotations

import datetime
import ipaddress
import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.observed import Grant
from supervisor.shell import enroll
from supervisor.shell.enroll.signer import LIFE_S, Early, Refused, Signer, grants
from supervisor.wire import enrollment, keys
from supervisor.wire.records import RemovedNode, encode
from supervisor.wire.security import Security, SecurityError, load
from tests.helpers.authority import Authority, authority, pem_of, signing_request

SIGNS = 'signs = "ca.key"\nenroll = ["127.0.0.1:9101"]\n'
LONG = "x" * 60
GRANTS = {
    "toy-a1": Grant(key="toy-a1", state="granted", nodes=("n1",)),
    "toy-a2": Grant(key="toy-a2", state="pending"),
    "toy-a3": Grant(key="toy-a3", state="gone", nodes=("n3",)),
    "toy-a4": Grant(key="toy-a4", state="granted", nodes=(LONG,)),
}


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return authority(tmp_path, "supervisor")


def signer(security: Security, life_s: float = LIFE_S) -> Signer:
    return Signer(security, GRANTS.get, life_s)


def asked(security: Security, allocation: str = "toy-a1", node: str = "n1", **other: object) -> bytes:
    secret = enrollment.secret(Path(security.signs).read_bytes(), allocation)
    body = {"node": node, "allocation": allocation, "secret": secret, "request": signing_request("node-other")}
    return json.dumps(body | other).encode()


def certificate(answer: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(json.loads(answer)["certificate"].encode())


def test_name_addresses_use_and_life_are_the_signers(ours: Authority) -> None:
    security = ours.security(more=SIGNS)
    key = ec.generate_private_key(ec.SECP256R1())
    before = datetime.datetime.now(datetime.UTC)
    answer = signer(security).answer(asked(security, request=signing_request("supervisor", key)), "10.0.0.7")
    made = certificate(answer)
    assert [part.value for part in made.subject] == ["node-n1"]
    assert made.public_key() == key.public_key()
    made.verify_directly_issued_by(ours.certificate)
    found = made.extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["node-n1"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.7")]
    basic = found.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value.ca) == (True, False)
    usage = found.get_extension_for_class(x509.KeyUsage)
    assert (usage.critical, usage.value.digital_signature, usage.value.key_cert_sign) == (True, True, False)
    assert set(found.get_extension_for_class(x509.ExtendedKeyUsage).value) == {
        ExtendedKeyUsageOID.SERVER_AUTH,
        ExtendedKeyUsageOID.CLIENT_AUTH,
    }
    lives = (made.not_valid_after_utc - before).total_seconds()
    assert 86390 < lives < 86410
    assert made.not_valid_before_utc < before - datetime.timedelta(minutes=59), "clocks differ"
    assert json.loads(answer) | {"certificate": ""} == {
        "certificate": "",
        "ca": Path(security.ca).read_text(),
        "crl": "",
    }


def test_the_deny_list_comes_with_it_as_it_is_now(ours: Authority) -> None:
    ours.deny()
    security = ours.security(more=f'crl = "crl.pem"\n{SIGNS}')
    signs = signer(security)
    first = json.loads(signs.answer(asked(security), "10.0.0.7"))
    ours.deny(certificate(json.dumps(first).encode()))
    second = json.loads(signs.answer(asked(security), "10.0.0.7"))
    assert first["crl"] != second["crl"] == Path(security.crl).read_text()


def test_no_certificate_outlives_the_authority(ours: Authority) -> None:
    security = ours.security(more=SIGNS)
    made = certificate(signer(security, life_s=1e9).answer(asked(security), "::1"))
    assert made.not_valid_after_utc == ours.certificate.not_valid_after_utc


@pytest.mark.parametrize(
    ("change", "kind", "why"),
    [
        ({"secret": "0" * 64}, Refused, "node 'n1' of allocation 'toy-a1': the secret is not that of the allocation"),
        ({"secret": "ä"}, Refused, "it is not a request for a certificate"),
        ({"secret": None}, Refused, "it is not a request"),
        ({"node": "n2"}, Refused, "node 'n2' of .*: the allocation was granted with n1"),
        ({"node": "n1\nforged log line"}, Refused, r"node 'n1\\nforged log line'"),
        ({"allocation": "toy-a2"}, Early, "the allocation is pending"),
        ({"allocation": "toy-a9"}, Early, "the allocation is unknown"),
        ({"allocation": "toy-a3", "node": "n3"}, Refused, "the allocation is gone"),
        ({"allocation": "toy-a4", "node": LONG}, Refused, "64 characters at most"),
        ({"request": "x"}, Refused, "the signing request is not valid"),
        ({"request": "forged"}, Refused, "the signing request is not valid"),
    ],
)
def test_refusals(ours: Authority, change: dict[str, str], kind: type[Refused], why: str) -> None:
    security = ours.security(more=SIGNS)
    allocation = change.pop("allocation", "toy-a1")
    if change.get("request") == "forged":
        # well formed, and not signed by the key in it
        made = x509.load_pem_x509_csr(signing_request("node-n1").encode()).public_bytes(serialization.Encoding.DER)
        flipped = x509.load_der_x509_csr(made[:-1] + bytes([made[-1] ^ 1]))
        change["request"] = flipped.public_bytes(serialization.Encoding.PEM).decode()
    with pytest.raises(Refused, match=why) as raised:
        signer(security).answer(asked(security, allocation, **change), "10.0.0.7")
    assert raised.type is kind


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b"\xff", b"{}", b"[" * 9000])
def test_a_body_that_is_no_request(ours: Authority, body: bytes) -> None:
    with pytest.raises(Refused, match="it is not a request for a certificate"):
        signer(ours.security(more=SIGNS)).answer(body, "10.0.0.7")


def test_the_secret_of_one_allocation_is_not_anothers(ours: Authority) -> None:
    security = ours.security(more=SIGNS)
    key = Path(security.signs).read_bytes()
    assert enrollment.secret(key, "toy-a1") != enrollment.secret(key, "toy-a10")
    assert enrollment.secret(key, "toy-a1") == enrollment.secret(bytes(key), "toy-a1")
    assert enrollment.secret(b"another key", "toy-a1") != enrollment.secret(key, "toy-a1")


def test_the_key_may_belong_to_any_authority_of_the_file(ours: Authority, tmp_path: Path) -> None:
    second = authority(tmp_path / "second")
    ca = tmp_path / "ca.pem"
    ca.write_bytes(ca.read_bytes() + (second.folder / "ca.pem").read_bytes())
    security = ours.security(more=SIGNS.replace("ca.key", "second/ca.key"))
    certificate(signer(security).answer(asked(security), "::1")).verify_directly_issued_by(second.certificate)


def test_a_key_that_cannot_sign_is_refused_at_the_start(ours: Authority, tmp_path: Path) -> None:
    security = ours.security(more=SIGNS)
    enroll.check(security)
    key = Path(security.signs)
    key.write_bytes(pem_of(ours.key, b"secret"))
    with pytest.raises(SecurityError, match="must be a private key in PEM without a password"):
        enroll.check(security)
    key.write_bytes(pem_of(ec.generate_private_key(ec.SECP256R1())))
    with pytest.raises(
        SecurityError, match=r"is not the key of a certificate in .*ca\.pem: give the key of one of its"
    ):
        enroll.check(security)
    key.unlink()
    with pytest.raises(SecurityError, match=r"ca\.key cannot be read: No such file"):
        enroll.check(security)


def test_others_may_not_use_the_key_and_a_login_node_needs_none(ours: Authority) -> None:
    security = ours.security(more=SIGNS)
    assert security.enroll == ("127.0.0.1:9101",)
    key = Path(security.signs)
    key.chmod(0o644)
    with pytest.raises(SecurityError, match=r"others than its owner may use the key .*ca\.key: run `chmod 600"):
        load(security.path)
    key.unlink()
    load(security.path)


def test_what_a_job_is_given_comes_back_and_shows_no_secret(ours: Authority) -> None:
    made = enrollment.given(ours.security(more=SIGNS), ["toy-a1", "toy-a2"])
    assert enrollment.decode(made.encode()) == made
    assert not any(secret in repr(made) for secret in made.secrets.values())
    with pytest.raises(ValueError, match="SUPERVISOR_ENROLL cannot be read") as raised:
        enrollment.decode('{"secrets": "abc"')
    assert "abc" not in str(raised.value)


def test_a_removed_node_gets_no_certificate_though_its_allocation_is_granted(ours: Authority) -> None:
    store, security = MemoryStore(), ours.security(more=SIGNS)
    store.put(keys.grant("toy", "toy-a1"), encode(Grant(key="toy-a1", state="granted", nodes=("n1", "n2"))))
    signs = Signer(security, grants(store))
    assert signs.answer(asked(security), "10.0.0.7")
    store.put(keys.removed_node("n1"), encode(RemovedNode(node="n1")))
    with pytest.raises(Refused, match="was granted with n2"):
        signs.answer(asked(security), "10.0.0.7")
    assert signs.answer(asked(security, node="n2"), "10.0.0.7"), "the others of it do"
