"""Keys and signatures: bound to a domain and to every byte; key files private, whole and never overwritten."""

import os
import pickle
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coterie import errors
from coterie.protocol.signing import (
    Domain,
    SigningKey,
    sign_plan,
    verify,
    verify_plan,
)

KEY = SigningKey.from_seed(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))


def refused(*arguments: object) -> str:
    with pytest.raises(errors.Unauthenticated) as caught:
        verify(*arguments)  # pyright: ignore[reportArgumentType]
    return caught.value.reason


def test_the_public_key_is_that_of_rfc_8032_section_7_1() -> None:
    assert KEY.public == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


@pytest.mark.parametrize("domain", list(Domain))
def test_a_signature_verifies_in_its_own_domain_only(domain: Domain) -> None:
    signature = KEY.sign(domain, b"message")
    verify(KEY.public, domain, b"message", signature)
    assert signature == KEY.sign(domain, b"message")
    for other in set(Domain) - {domain}:
        assert refused(KEY.public, other, b"message", signature) == "signature_invalid"


def test_no_domain_is_the_beginning_of_another() -> None:
    values = [domain.value for domain in Domain]
    assert not any(a != b and a.startswith(b) for a in values for b in values)


def test_another_key_message_or_signature_does_not_verify() -> None:
    signature = KEY.sign(Domain.TASK, b"message")
    assert refused(SigningKey.generate().public, Domain.TASK, b"message", signature) == "signature_invalid"
    assert refused(KEY.public, Domain.TASK, b"messagf", signature) == "signature_invalid"
    other = ("A" if signature[5] != "A" else "B").join((signature[:5], signature[6:]))
    assert refused(KEY.public, Domain.TASK, b"message", other) == "signature_invalid"


@pytest.mark.parametrize(
    ("public", "signature"),
    [
        ("", ""),
        (KEY.public, ""),
        (KEY.public, "A" * 88),
        (KEY.public, "A" * 86 + "=="),
        (KEY.public.upper(), "A" * 86 + "=="),
        (KEY.public + "\n", "A" * 86 + "=="),
        (KEY.public, "A" * 86 + "==\n"),
        ("ff" * 32, "A" * 86 + "=="),
        ("é" * 64, "A" * 86 + "=="),
    ],
)
def test_keys_and_signatures_of_another_form_do_not_verify(public: str, signature: str) -> None:
    assert refused(public, Domain.PLAN, b"message", signature) == "signature_invalid"


def test_plan_signatures_cover_the_plan_id() -> None:
    signature = sign_plan(KEY, "ab" * 32)
    verify_plan(KEY.public, "ab" * 32, signature)
    with pytest.raises(errors.Unauthenticated, match="over this plan"):
        verify_plan(KEY.public, "ac" * 32, signature)


def test_a_key_is_saved_private_and_loaded_whole(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    KEY.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert SigningKey.load(path).public == KEY.public
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    KEY.save(path)
    with pytest.raises(errors.ConfigurationError, match="exists already") as caught:
        SigningKey.generate().save(path)
    assert caught.value.reason == "key_exists"
    assert SigningKey.load_or_create(path).public == KEY.public


def test_racing_creators_get_one_key(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(SigningKey.load_or_create(path).public)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert list(tmp_path.iterdir()) == [path]


def other_key() -> bytes:
    return X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.mark.parametrize("content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n", other_key()])
def test_a_malformed_key_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o644)  # its mode is nobody's trouble while it is no key
    with pytest.raises(errors.ConfigurationError, match="key.pem is not an unencrypted Ed25519") as caught:
        SigningKey.load(path)
    assert caught.value.reason == "key_invalid"


def test_an_encrypted_key_file_is_refused(tmp_path: Path) -> None:
    inner = serialization.load_pem_private_key(saved(tmp_path), None)
    path = tmp_path / "locked.pem"
    path.write_bytes(
        inner.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    path.chmod(0o600)
    with pytest.raises(errors.ConfigurationError, match="unencrypted"):
        SigningKey.load(path)


def saved(folder: Path) -> bytes:
    KEY.save(folder / "plain.pem")
    return (folder / "plain.pem").read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX thing")
def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    KEY.save(path)
    path.chmod(0o640)
    with pytest.raises(errors.ConfigurationError, match="chmod 600") as caught:
        SigningKey.load(path)
    assert caught.value.reason == "key_exposed"


def test_missing_and_unreadable_key_files_are_told_apart(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "absent", "key_missing"), (tmp_path, "key_unreadable")):
        with pytest.raises(errors.ConfigurationError) as caught:
            SigningKey.load(path)
        assert caught.value.reason == code


def test_a_seed_has_32_bytes() -> None:
    with pytest.raises(errors.ConfigurationError, match="32 bytes; got 31"):
        SigningKey.from_seed(bytes(31))


def test_no_secret_shows_or_leaves_by_accident() -> None:
    assert repr(KEY) == str(KEY) == f"SigningKey(public={KEY.public})"
    with pytest.raises(TypeError):
        pickle.dumps(KEY)
