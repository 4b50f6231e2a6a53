"""The options ``tls.*``, as all connectors read them."""

from __future__ import annotations

import ssl

import pytest

from lookupcache.errors import ConnectorError, OptionError
from lookupcache.tls import TLS_MODES, TlsOptions


@pytest.mark.parametrize(
    ("mode", "verifies", "names_host"),
    [("require", False, False), ("verify-ca", True, False), ("verify-full", True, True)],
)
@pytest.mark.parametrize("trust_system", [True, False])
@pytest.mark.parametrize("as_text", [True, False])
def test_a_mode_is_what_the_context_verifies(authority, mode, verifies, names_host, trust_system, as_text):
    path = authority / "ca.pem"
    options = TlsOptions.of({"tls.mode": mode, "tls.ca": path.read_text() if as_text else str(path)})
    context = options.context(trust_system=trust_system)
    assert (context.verify_mode == ssl.CERT_REQUIRED, context.check_hostname) == (verifies, names_host)
    own = ssl.create_default_context(cafile=str(path)).get_ca_certs(binary_form=True)
    assert set(own) <= set(context.get_ca_certs(binary_form=True))


def test_modes_are_those_of_the_connector():
    assert [TlsOptions.of({}, default=mode).mode for mode in TLS_MODES] == list(TLS_MODES)
    assert TlsOptions.of({"tls.mode": "none"}, former_modes={"none": "require"}).mode == "require"
    with pytest.raises(OptionError, match=r"Option 'tls.mode' is 'verify-al'(?s:.*)'verify-full'"):
        TlsOptions.of({"tls.mode": "verify-al"}, modes=("verify-full",))


@pytest.mark.parametrize("option", ["tls.ca", "tls.certificate", "tls.key"])
def test_the_error_for_an_unreadable_file_shows_no_content(authority, tmp_path, option):
    """It names the option."""
    client, secret = str(authority / "client.pem"), tmp_path / "hunter2.pem"
    secret.write_text("-----BEGIN hunter2")
    options = {"tls.certificate": client, "tls.key": client, option: str(secret)}
    named = "tls.certificate" if option == "tls.key" else option
    with pytest.raises(ConnectorError, match=f"Option '{named}': the certificate cannot be read") as raised:
        TlsOptions.of(options).context(trust_system=False)
    assert "hunter2" not in str(raised.value)


def test_the_password_of_the_key_is_not_shown():
    assert "hunter2" not in repr(TlsOptions.of({"tls.key-password": "hunter2"}))


def test_a_private_key_given_as_a_path_is_refused_and_not_shown():
    with pytest.raises(OptionError, match=r"'tls\.key' is a private key") as caught:
        TlsOptions.of({"tls.key": "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"})
    assert "hunter2" not in str(caught.value)
