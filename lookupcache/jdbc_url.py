"""JDBC's URLs and its drivers' parameters as a URL and options of the connector `sql`.

A parameter that decides about rows or the connection has an option of ours, or is refused with a cure. One that tunes a
driver is ignored, and its name is returned, for advice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, unquote_plus, urlencode

from lookupcache.errors import OptionError, nearest
from lookupcache.redaction import is_secret

Action = Callable[[str], Mapping[str, str]]
"""From a parameter's value to options of ours; a name that begins with '?' is a parameter of our URL."""


class Refused(Exception):
    """A parameter, or a value of it, that has no option of ours; the text is the cure."""


class Parameter(NamedTuple):
    """A parameter of a driver; ``subject`` begins the sentence of an error."""

    name: str
    value: str
    subject: str


def is_jdbc(url: object) -> bool:
    """Return whether a value is a JDBC URL.

    >>> is_jdbc("jdbc:postgresql://db/shop"), is_jdbc("postgresql://db/shop")
    (True, False)
    """
    return isinstance(url, str) and url[:5].lower() == "jdbc:"


def database_of(url: object) -> str:
    """Return the database's kind by a URL, JDBC's or ours; an empty text for one without, such as a reference.

    >>> database_of("jdbc:mysql://db/shop"), database_of("postgresql+psycopg://db/shop"), database_of("env:URL")
    ('mysql', 'postgresql', '')
    """
    scheme, colon, _ = str(url)[5 if is_jdbc(url) else 0 :].partition(":")
    kind = scheme.partition("+")[0].lower() if colon else ""
    return kind if kind in _PARAMETERS else ""


def is_parameter(kind: str, name: str) -> bool:
    """Return whether a database's JDBC driver has a parameter of this name that is known here."""
    return name.lower() in _RULES[kind] or name.lower() in _IGNORED[kind]


def from_jdbc_url(url: str) -> tuple[str, dict[str, str], list[str]]:
    """Return our URL, the options that a JDBC URL means besides, and the names of its parameters that are ignored.

    Raises OptionError, without any value of the URL, for a database, a form or a parameter that `sql` does not support.

    >>> from_jdbc_url("jdbc:mysql://db:3306/shop?useSSL=false&user=ann&cachePrepStmts=true")
    ('mysql://db:3306/shop', {'user': 'ann', 'tls.mode': 'disable'}, ['cachePrepStmts'])
    >>> from_jdbc_url("jdbc:postgresql:shop?currentSchema=crm")[0]
    'postgresql://localhost/shop?options=-csearch_path%3Dcrm'
    """
    base, given = split_url(url)
    options, ignored = from_parameters(database_of(url), given)
    return (*with_parameters(base, options), ignored)


def split_url(url: str) -> tuple[str, list[Parameter]]:
    """Return our URL of the same database without parameters, and those of a JDBC URL; raises OptionError.

    >>> split_url("jdbc:sqlite:/data/shop.db?mode=ro")[0]
    'sqlite:////data/shop.db'
    """
    address, _, query = url[5:].partition("?")
    kind, _, place = address.partition(":")
    kind = kind.lower()
    if kind not in _PARAMETERS:
        raise _other_database(kind)
    decode = unquote_plus if kind == "postgresql" else unquote
    # Of a login whose letters were not encoded, the rest may stand where a name does.
    has_login = ":" in place.removeprefix("//").partition("/")[0].rpartition("@")[0] or "@" in query
    given = []
    for name, equals, value in (part.partition("=") for part in query.split("&") if part):
        name = unquote(name)
        is_shown = is_parameter(kind, name) or (bool(equals) and not has_login)
        given.append(Parameter(name, decode(value), _subject(name, is_shown=is_shown)))
        has_login |= is_secret(name)
    return (f"{kind}:///{place.removeprefix('file:')}" if kind in _FILES else _server(kind, place)), given


def _subject(name: str, *, is_shown: bool) -> str:
    return f"Option 'url': {f'the parameter {name!r}' if is_shown else 'a parameter'} of the JDBC URL"


def from_parameters(kind: str, given: Sequence[Parameter]) -> tuple[dict[str, str], list[str]]:
    """Return the options that a driver's parameters mean, and the names of those that are ignored.

    A name that begins with '?' is a parameter of our URL. Raises OptionError for a parameter that cannot be used.
    """
    values = dict[str, Parameter]()
    for one in given:
        if not is_parameter(kind, one.name):
            hint = nearest(one.name, _PARAMETERS[kind], what="parameters", most=3)
            raise OptionError(f"{one.subject} is not known here.", hint=f"{hint} Or leave it out.")
        if values.setdefault(one.name.lower(), one).value != one.value:
            raise OptionError(f"{one.subject} is given twice, with two values.", hint="Leave out one of them.")
    found = dict[str, str]()
    for name, action in _RULES[kind].items() if kind else ():  # In this order: later ones replace earlier ones.
        if name in values:
            _apply(action, values[name], found)
    return found, [one.name for name, one in values.items() if name not in _RULES[kind]]


def _apply(action: Action, one: Parameter, found: dict[str, str]) -> None:
    try:
        added = dict(action(one.value))
    except Refused as error:
        raise OptionError(f"{one.subject} cannot be used.", hint=str(error)) from None
    if "?options" in found and "?options" in added:
        added["?options"] = f"{found['?options']} {added['?options']}"
    found.update(added)


def with_parameters(url: str, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return our URL with those options that are parameters of it, and the other options.

    >>> with_parameters("postgresql://db/shop", {"?application_name": "a", "user": "ann"})
    ('postgresql://db/shop?application_name=a', {'user': 'ann'})
    """
    inside = {name[1:]: value for name, value in options.items() if name.startswith("?")}
    outside = {name: value for name, value in options.items() if not name.startswith("?")}
    mark = "&" if "?" in url else "?"
    return (f"{url}{mark}{urlencode(inside, quote_via=quote)}" if inside else url), outside


def refuse_contradictions(in_url: Mapping[str, str], own: Mapping[str, Any]) -> None:
    """Raise OptionError for a login or an option of TLS that differs from what a JDBC URL says."""
    for name, value in in_url.items():
        if name.startswith(("user", "password", "tls.")) and value != str(own.get(name, value)):
            raise OptionError(f"Option {name!r} differs from what the JDBC URL says.", hint="Leave out one of them.")


# ── addresses ────────────────────────────────────────────────────────────────────────────────────────────────

_FILES = ("sqlite", "duckdb")
_OURS = {"postgresql": "postgresql://user@host:5432/database", "mysql": "mysql://user@host:3306/database",
         "mariadb": "mariadb://user@host:3306/database"}  # fmt: skip


def _server(kind: str, place: str) -> str:
    if kind == "postgresql" and not place.startswith("/"):
        place = f"///{place}"
    host, _, database = place.removeprefix("//").partition("/")
    if not place.startswith("//") or "(" in host:
        raise OptionError(
            "Option 'url' is a JDBC URL of a form that connector 'sql' does not know.", hint=f"Write {_OURS[kind]!r}."
        )
    if "," in host.rpartition("@")[2]:
        raise OptionError(
            "Option 'url' is a JDBC URL of several servers.",
            hint="Name one, such as a host name that leads to the server which is in use.",
        )
    return f"{kind}://{host or 'localhost'}/{database}"


_OTHERS = {
    "sqlserver": ("mssql+pymssql://user@host:1433/database", "pymssql"),
    "jtds": ("mssql+pymssql://user@host:1433/database", "pymssql"),
    "oracle": ("oracle+oracledb://user@host:1521/?service_name=service", "oracledb"),
    "db2": ("db2+ibm_db://user@host:50000/database", "ibm_db_sa"),
    "snowflake": ("snowflake://user@account/database/schema", "snowflake-sqlalchemy"),
    "redshift": ("redshift+psycopg2://user@host:5439/database", "sqlalchemy-redshift psycopg2-binary"),
    "bigquery": ("bigquery://project/dataset", "sqlalchemy-bigquery"),
    "trino": ("trino://user@host:8080/catalog/schema", "trino"),
    "clickhouse": ("clickhousedb+connect://user@host:8123/database", "clickhouse-connect"),
    "ch": ("clickhousedb+connect://user@host:8123/database", "clickhouse-connect"),
    "crate": ("crate://user@host:4200", "sqlalchemy-cratedb"),
    "databricks": ("databricks://token@host?http_path=path", "databricks-sqlalchemy"),
    "teradata": ("teradatasql://user@host", "teradatasqlalchemy"),
    "sap": ("hana+hdbcli://user@host:30015", "sqlalchemy-hana"),
}
"""By the name in a JDBC URL, the URL of SQLAlchemy's dialect, and the packages to install."""

_OF_JAVA = ("derby", "h2", "hsqldb")


def _other_database(kind: str) -> OptionError:
    if kind in _OTHERS:
        url, packages = _OTHERS[kind]
        return OptionError(
            f"Option 'url' is a JDBC URL of {kind!r}, which is read through SQLAlchemy.",
            hint=f"Write {url!r}, and pip install 'lookupcache[sqlalchemy]' {packages}.",
        )
    if kind in _OF_JAVA:
        return OptionError(
            f"Option 'url' is a JDBC URL of {kind!r}, which only Java reads.",
            hint="Copy its tables to SQLite or DuckDB, or join with spark.read.format('jdbc').",
        )
    # What stands in place of the database's name may be anything, also a secret.
    return OptionError(
        "Option 'url' is a JDBC URL of a database that is not known here.",
        hint=f"Connector 'sql' reads {', '.join(_PARAMETERS)} by their JDBC URLs, and others by SQLAlchemy's URL, "
        "'dialect+driver://user@host/database'.",
    )


# ── parameters ───────────────────────────────────────────────────────────────────────────────────────────────


def _to(option: str) -> Action:
    return lambda value: {option: value}


def _time(option: str, per_second: int) -> Action:
    def action(value: str) -> Mapping[str, str]:
        if not (value.isascii() and value.isdigit()):
            raise Refused(f"It is a number, as in '30'. Or set {option!r}, in seconds.")
        return {option: f"{int(value) / per_second:g}"} if int(value) else {}

    return action


def _one_of(choices: Mapping[str, Mapping[str, str]], cure: str) -> Action:
    def action(value: str) -> Mapping[str, str]:
        found = choices.get(value.lower().replace("_", "-"))
        if found is None:
            raise Refused(cure)
        return found

    return action


def _never(cure: str) -> Action:
    return _one_of({}, cure)


def _mode(modes: Mapping[str, str]) -> Action:
    """Return the action of a parameter whose values are modes of TLS; an empty text is no mode."""
    cure = "Set 'tls.mode' to 'disable', 'prefer', 'require', 'verify-ca' or 'verify-full'."
    return _one_of({value: {"tls.mode": mode} if mode else {} for value, mode in modes.items()}, cure)


def _search_path(value: str) -> Mapping[str, str]:
    escaped = re.sub(r"([\\\s])", r"\\\1", value)
    return {"?options": f"-csearch_path={escaped}"}


_MODES = {mode: mode for mode in ("disable", "prefer", "require", "verify-ca", "verify-full")}
_FILES_OF_TLS = (
    "Set 'tls.ca', 'tls.certificate', 'tls.key' and 'tls.key-password'; they take PEM files, no Java key stores."
)
_LOGIN = _never("Log in with 'user' and 'password': other ways are not supported.")
_ONE_SERVER = _never("Leave it out: the URL names one server.")
_TRUSTED = _never("Set 'tls.mode': 'require' takes any certificate, 'verify-full' those that 'tls.ca' signed.")
_IN_UTC = "utc", "gmt", "z", "uct", "+00:00", "-00:00", "etc/utc", "etc/gmt", "utc+0", "gmt+0", "zulu", "universal"
_ZONE = _one_of(
    {zone: {} for zone in _IN_UTC},
    "Leave it out: a TIMESTAMP is read as the instant that it is, and a DATETIME as TIMESTAMP_NTZ, without zone. "
    "Or convert a DATETIME by CONVERT_TZ in option 'query'.",
)
_ENCODING = _one_of(
    {name: {} for name in ("utf-8", "utf8", "utf8mb4", "utf8mb3", "unicode")},
    "Leave it out: texts are read as UTF-8, whatever encoding their columns have.",
)
_COLLATION = _never("Leave it out: keys are compared as Spark compares them, and texts are read as UTF-8.")
_SESSION = _never("Set it for the user in the database; connector 'sql' has settings of its own for a session.")

_POSTGRES: Mapping[str, Action] = {
    "user": _to("user"),
    "password": _to("password"),
    "ssl": _mode({"true": "verify-full", "": "verify-full", "false": "prefer"}),
    "sslmode": _mode(_MODES | {"allow": "prefer"}),
    "sslrootcert": _to("tls.ca"),
    **dict.fromkeys(("sslcert", "sslkey", "sslpassword", "sslpasswordcallback"), _never(_FILES_OF_TLS)),
    **dict.fromkeys(("sslfactory", "sslfactoryarg", "sslhostnameverifier"), _TRUSTED),
    "options": _to("?options"),
    "currentSchema": _search_path,
    "loginTimeout": _time("connect.timeout", 1),
    "connectTimeout": _time("connect.timeout", 1),
    "socketTimeout": _time("statement.timeout", 1),
    "service": _to("?service"),
    "channelBinding": _to("?channel_binding"),
    "gssEncMode": _to("?gssencmode"),
    **dict.fromkeys(("gsslib", "jaasApplicationName", "jaasLogin", "kerberosServerName", "useSpnego",
                     "sspiServiceClass", "authenticationPluginClassName", "requireAuth"), _LOGIN),
    **dict.fromkeys(("targetServerType", "loadBalanceHosts", "hostRecheckSeconds"), _ONE_SERVER),
    **dict.fromkeys(("socketFactory", "socketFactoryArg", "localSocketAddress"),
                    _never("Leave it out, and name the host that the workers reach, or the folder of a Unix socket.")),
    "replication": _never("Leave it out: lookups read tables."),
}  # fmt: skip
_MYSQL: Mapping[str, Action] = {
    "user": _to("user"),
    "password": _to("password"),
    "useSSL": _mode({"true": "require", "false": "disable"}),
    "requireSSL": _mode({"true": "require", "false": ""}),
    "verifyServerCertificate": _mode({"true": "verify-ca", "false": ""}),
    "trustServerCertificate": _mode({"true": "require", "false": ""}),
    "disableSslHostnameVerification": _mode({"true": "verify-ca", "false": ""}),
    "sslMode": _mode(_MODES | {"disabled": "disable", "preferred": "prefer", "required": "require", "trust": "require",
                               "verify-identity": "verify-full"}),
    "serverSslCert": _to("tls.ca"),
    **dict.fromkeys((
        "trustCertificateKeyStoreUrl", "trustCertificateKeyStoreType", "trustCertificateKeyStorePassword",
        "clientCertificateKeyStoreUrl", "clientCertificateKeyStoreType", "clientCertificateKeyStorePassword",
        "trustStore", "trustStoreType", "trustStorePassword", "keyStore", "keyStoreType", "keyStorePassword",
        "keyPassword", "fallbackToSystemTrustStore", "fallbackToSystemKeyStore",
    ), _never(_FILES_OF_TLS)),
    **dict.fromkeys(("enabledTLSProtocols", "tlsVersions", "tlsCiphersuites", "enabledSslProtocolSuites",
                     "enabledSslCipherSuites"), _never("Leave it out: Python chooses what both sides support.")),
    "connectTimeout": _time("connect.timeout", 1000),
    "socketTimeout": _time("statement.timeout", 1000),
    **dict.fromkeys(("serverTimezone", "connectionTimeZone", "timezone"), _ZONE),
    "zeroDateTimeBehavior": _one_of(
        {"exception": {}}, "Read the table by option 'query', with NULLIF(day, '0000-00-00') for such a column."
    ),
    **dict.fromkeys(("characterEncoding", "characterSetResults", "passwordCharacterEncoding"), _ENCODING),
    "connectionCollation": _COLLATION,
    **dict.fromkeys(("sessionVariables", "initSQL", "customCharsetMapping", "queryInterceptors",
                     "connectionLifecycleInterceptors"), _SESSION),
    **dict.fromkeys(("authenticationPlugins", "defaultAuthenticationPlugin", "password1", "password2", "password3",
                     "credentialType", "serverRSAPublicKeyFile", "ociConfigFile"), _LOGIN),
    **dict.fromkeys(("failOverReadOnly", "loadBalanceStrategy", "secondsBeforeRetrySource", "queriesBeforeRetrySource",
                     "transactionReplay"), _ONE_SERVER),
    **dict.fromkeys(("socketFactory", "socksProxyHost", "socksProxyPort", "pipe", "dnsSrv", "localSocketAddress"),
                    _never("Leave it out, and name the host that the workers reach.")),
    "localSocket": _to("?unix_socket"),
    "useOldAliasMetadataBehavior": _never("Leave it out: a column has the name that the table or query gives it."),
    "autoDeserialize": _never("Leave it out: a BLOB is read as BINARY."),
    "allowLoadLocalInfile": _one_of({"false": {}}, "Leave it out: lookups only read."),
    "createDatabaseIfNotExist": _one_of({"false": {}}, "Leave it out: lookups only read."),
}  # fmt: skip
_MARIADB = {**_MYSQL, "useSSL": _mode({"true": "verify-full", "false": "disable"})}
_SQLITE: Mapping[str, Action] = {
    "mode": _one_of({"ro": {}, "rw": {}, "rwc": {}}, "Name a file: others have no database in memory."),
    "cache": _one_of({"private": {}, "shared": {}}, "Leave it out."),
    "immutable": _one_of({"0": {}, "false": {}}, "Leave it out: a file may change while it is read."),
    "vfs": _never("Leave it out: SQLite's own way to read files is used."),
    **dict.fromkeys(("password", "key", "hexkey", "cipher", "hexkey_mode"),
                    _never("Decrypt the file before: Python's SQLite does not.")),
}  # fmt: skip

_PARAMETERS: Mapping[str, Mapping[str, Action]] = {
    "postgresql": _POSTGRES, "mysql": _MYSQL, "mariadb": _MARIADB, "sqlite": _SQLITE, "duckdb": {},
}  # fmt: skip
"""By database, what each parameter of its driver means here."""

_NO_EFFECT_MYSQL = """
    allowMultiQueries allowPublicKeyRetrieval allowUrlInLocalInfile autoReconnect autoReconnectForPools
    cacheCallableStmts cachePrepStmts cacheResultSetMetadata cacheServerConfiguration callableStmtCacheSize
    connectionAttributes continueBatchOnError databaseTerm defaultFetchSize dontTrackOpenResources
    dumpQueriesOnException elideSetAutoCommits emptyStringsConvertToZero enablePacketDebug enableQueryTimeouts
    forceConnectionTimeZoneToSession initialTimeout interactiveClient jdbcCompliantTruncation logSlowQueries logger
    maintainTimeStats maxAllowedPacket maxIdleTime maxPoolSize maxReconnects metadataCacheSize minPoolSize
    netTimeoutForStreamingResults noAccessToProcedureBodies noDatetimeStringSync nullCatalogMeansCurrent
    nullDatabaseMeansCurrent paranoid pool poolName prepStmtCacheSize prepStmtCacheSqlLimit preserveInstants profileSQL
    queryTimeoutKillsConnection rewriteBatchedStatements sendFractionalSeconds slowQueryThresholdMillis tcpKeepAlive
    tcpNoDelay tcpRcvBuf tcpSndBuf tinyInt1isBit transformedBitIsBoolean useAffectedRows useBulkStmts
    useBulkStmtsForInserts useCompression useCursorFetch useInformationSchema useJDBCCompliantTimezoneShift
    useLegacyDatetimeCode useLocalSessionState useLocalTransactionState useReadAheadInput useServerPrepStmts
    useTimezone useUnbufferedInput useUnicode useUsageAdvisor yearIsDateType
"""
_NO_EFFECT = {
    "postgresql": """
        adaptiveFetch adaptiveFetchMaximum adaptiveFetchMinimum allowEncodingChanges applicationName
        assumeMinServerVersion autosave binaryTransfer binaryTransferDisable binaryTransferEnable cancelSignalTimeout
        cleanupSavepoints databaseMetadataCacheFields databaseMetadataCacheFieldsMiB defaultRowFetchSize
        disableColumnSanitiser escapeSyntaxCallMode groupStartupParameters hideUnprivilegedObjects logServerErrorDetail
        logUnclosedConnections loggerFile loggerLevel maxResultBuffer preferQueryMode prepareThreshold
        preparedStatementCacheQueries preparedStatementCacheSizeMiB quoteReturningIdentifiers
        raiseExceptionOnSilentRollback reWriteBatchedInserts readOnly readOnlyMode receiveBufferSize sendBufferSize
        sslResponseTimeout stringtype tcpKeepAlive tcpNoDelay unknownLength xmlFactoryFactory
    """,
    "mysql": _NO_EFFECT_MYSQL,
    "mariadb": _NO_EFFECT_MYSQL,
    "sqlite": """
        busy_timeout cache_size date_class date_precision date_string_format enable_load_extension enable_shared_cache
        foreign_keys journal_mode locking_mode mmap_size open_mode shared_cache synchronous temp_store transaction_mode
    """,
    "duckdb": "access_mode duckdb.read_only threads memory_limit temp_directory",
}
_IGNORED = {kind: frozenset(names.lower().split()) for kind, names in _NO_EFFECT.items()}
"""By database, parameters that tune a driver, log, write, or say what a table's schema says here."""
_RULES = {kind: {name.lower(): action for name, action in rules.items()} for kind, rules in _PARAMETERS.items()}
