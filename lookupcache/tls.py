"""The options ``tls.*``, which are the same in all connectors: encryption, trusted authorities, our certificate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from lookupcache.errors import ConnectorError, OptionError
from lookupcache.source_options import one_of

if TYPE_CHECKING:
    import ssl

Result = TypeVar("Result")

TLS_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
"""No encryption; encryption if the server offers it; always, with any certificate; with a trusted authority's; and with
one that also names the host. The words are PostgreSQL's."""

TLS_OPTIONS: Mapping[str, str] = {
    "tls.ca": "A PEM file of the authorities to trust, or its text, as by 'file:PATH'; the system's by default.",
    "tls.certificate": "A PEM file with the client's certificate, for servers that require one.",
    "tls.key": "A PEM file with that certificate's key, if it is not in the same file.",
    "tls.key-password": "The key's password.",
}
"""Texts for `Connector.options`; ``tls.mode`` is described by each connector, as its values differ."""


def check_encrypted(options: Iterable[str], url: str) -> None:
    """Raise OptionError for options ``tls.*`` of a URL without encryption."""
    if any(name.startswith("tls.") for name in options) and not url.lower().startswith("https:"):
        raise OptionError(
            "Options 'tls.…' are for a 'url' that starts with 'https://'.", hint="Write 'https://', or leave them out."
        )


@dataclass(frozen=True)
class TlsOptions:
    """The options ``tls.*`` of a table: a mode, and paths of PEM files; ``ca`` may also be PEM text."""

    mode: str = "verify-full"
    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)

    @classmethod
    def of(
        cls,
        options: Mapping[str, str],
        *,
        modes: Sequence[str] = TLS_MODES,
        default: str = "verify-full",
        former_modes: Mapping[str, str] | None = None,
    ) -> TlsOptions:
        """Read the options.

        Args:
            options: The connector's options, under their current names.
            modes: The values of ``tls.mode`` that the connector supports.
            default: The mode if the option is not set.
            former_modes: Maps values that ``tls.mode`` had under a former name to the current ones.

        Raises OptionError for another mode.

        >>> TlsOptions.of({"tls.mode": "require", "tls.ca": "/etc/ca.pem"}).mode
        'require'
        """
        given = options.get("tls.mode", "")
        mode = (former_modes or {}).get(given) or one_of(options, "tls.mode", modes, default)
        if "PRIVATE KEY-----" in options.get("tls.key", ""):
            raise OptionError(
                "Option 'tls.key' is a private key itself, which is not a secret option.",
                hint="Set it to the path of a PEM file that all workers have.",
            )
        rest = (options.get(f"tls.{name}", "") for name in ("ca", "certificate", "key", "key-password"))
        return cls(mode, *rest)

    @property
    def has_ca_text(self) -> bool:
        """Whether ``ca`` is PEM text instead of a path."""
        return "-----BEGIN" in self.ca

    def context(self, *, trust_system: bool) -> ssl.SSLContext:
        """Return a context for Python's ssl module; raises ConnectorError for a file that cannot be read.

        ``trust_system`` trusts the system's authorities in addition to ``ca``, not only without it.
        """
        import ssl  # Here, since drivers in C do without Python's ssl, and it takes long to import.

        text, path = (self.ca, None) if self.has_ca_text else (None, self.ca or None)
        context = _load("tls.ca", lambda: ssl.create_default_context(cafile=path, cadata=text))
        if trust_system and self.ca:
            context.load_default_certs()
        context.check_hostname = self.mode == "verify-full"
        context.verify_mode = ssl.CERT_REQUIRED if self.mode.startswith("verify-") else ssl.CERT_NONE
        if self.certificate:
            # Without a function for the password, OpenSSL would prompt for it on the terminal.
            chain, key = self.certificate, self.key or None
            _load("tls.certificate", lambda: context.load_cert_chain(chain, key, lambda: self.key_password))
        return context


def _load(option: str, load: Callable[[], Result]) -> Result:
    try:
        return load()
    except (OSError, ValueError, TypeError) as error:
        # The error's own text may contain the file's, so only its class is shown.
        raise ConnectorError(
            f"Option {option!r}: the certificate cannot be read: {type(error).__name__}.",
            hint="Set it to the path of a PEM file that all workers have; a client's certificate needs its 'tls.key'.",
        ) from None
