"""Settings: who wins, where a value came from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from querator import config
from querator.config import Context, Contexts, HttpAddress, Setting
from querator.errors import ConfigError, NotFound, UsageError


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def write(tmp_path: Path, text: str, name: str = "q.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_without_any_setting_everything_is_in_the_state_directory(tmp_path: Path, environ: dict[str, str]) -> None:
    found = config.daemon_config(environ=environ)
    data = tmp_path / ".local" / "state" / "querator"
    assert found.data == data
    assert found.socket == data / "querator.sock"
    assert found.http is None
    assert [(s.name, s.directory, s.affinity) for s in found.storages] == [("default", data / "partitions", 1.0)]
    assert {setting.origin for setting in found.settings.values()} == {"default"}


def test_xdg_directories_are_honoured(tmp_path: Path, environ: dict[str, str]) -> None:
    environ |= {"XDG_STATE_HOME": str(tmp_path / "s"), "XDG_CONFIG_HOME": str(tmp_path / "c")}
    assert config.daemon_config(environ=environ).data == tmp_path / "s" / "querator"
    assert config.contexts_path(environ) == tmp_path / "c" / "querator" / "contexts.toml"


def test_flag_wins_over_environment_wins_over_file(tmp_path: Path, environ: dict[str, str]) -> None:
    file = write(tmp_path, 'data = "from-file"\nhttp = "file:1"\n[logging]\nlevel = "error"')
    environ |= {"QUERATOR_CONFIG": str(file), "QUERATOR_HTTP": "environment:2", "QUERATOR_LOG_LEVEL": "warning"}
    found = config.daemon_config(http="flag:3", environ=environ)
    assert (found.http, found.log_level, found.data) == (HttpAddress("flag", 3), "warning", tmp_path / "from-file")
    assert found.settings["http"] == Setting("flag:3", "flag")
    assert found.settings["logging.level"].origin == "QUERATOR_LOG_LEVEL"
    assert found.settings["data"].origin == str(file)
    assert found.settings["config"].origin == "QUERATOR_CONFIG"


def test_paths_of_the_file_are_meant_from_where_the_file_is(tmp_path: Path, environ: dict[str, str]) -> None:
    file = write(tmp_path, 'data = "d"\nsocket = "s.sock"\n[[storages]]\nname = "fast"\ndirectory = "nvme"')
    found = config.daemon_config(config=file, environ=environ)
    assert (found.data, found.socket) == (tmp_path / "d", tmp_path / "s.sock")
    assert [s.directory for s in found.storages] == [tmp_path / "nvme"]


def test_storages_limits_and_queues_of_the_file(tmp_path: Path, environ: dict[str, str]) -> None:
    file = write(
        tmp_path,
        """
        [limits]
        inbox_requests = 7
        [[storages]]
        name = "fast"
        directory = "/a"
        affinity = 2
        [[storages]]
        name = "slow"
        directory = "/b"
        affinity = 0.5
        [[queues]]
        name = "mail"
        partitions = 4
        dead_queue = "mail-dead"
        """,
    )
    found = config.daemon_config(config=file, environ=environ)
    assert [(s.name, s.affinity) for s in found.storages] == [("fast", 2.0), ("slow", 0.5)]
    assert found.limits.inbox_requests == 7
    (queue,) = found.queues
    assert (queue.name, queue.partitions, queue.dead_queue, queue.lease_timeout) == ("mail", 4, "mail-dead", "1m")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('dta = "x"', "unknown key 'dta'", "did you mean 'data'?"),
        ('[logging]\nlevle = "info"', "unknown key 'logging.levle'", "did you mean 'level'?"),
        ('[[storages]]\nname = "a"\npath = "/"', "unknown key 'storages[0].path'", "known here: name, directory"),
        ("data = 5", "'data' must be text, not 5", ""),
        ("[limits]\ninbox_requests = true", "'limits.inbox_requests' must be a whole number, not True", ""),
        ("[limits]\ninbox_requests = 0", "'limits.inbox_requests' must be at least 1", ""),
        ('[logging]\nlevel = "loud"', "'logging.level' is 'loud'", "it can be debug, info, warning, error"),
        ("logging = 1", "'logging' must be a table", ""),
        ("logging.level = 2026-01-01", "'logging.level' must be text, not datetime.date(2026, 1, 1)", ""),
        ("http = 5", "'http' must be true or false or text, not 5", ""),
        ("storages = [5]", "'storages[0]' must be a table", ""),
        ('[[storages]]\nname = "a"\naffinity = true', "'storages[0].affinity' must be a number, not True", ""),
        ('[[queues]]\nname = ""', "'queues[0].name' must not be empty", ""),
        ('[[queues]]\nname = "q"\n[[queues]]\nname = "r"\npartition = 2', "'queues[1].partition'", "'partitions'?"),
        ("queues = 1", "'queues' must be a list of tables", ""),
        ("[[queues]]\npartitions = 1", "'queues[0]' has no name", ""),
        ('[[queues]]\nname = "q"\npartitions = 1001', "'queues[0].partitions' must be between 1 and 1000", ""),
        ('[[queues]]\nname = "q"\npartitions = 0', "'queues[0].partitions' must be between 1 and 1000, not 0", ""),
        ('[[storages]]\nname = "a/b"\ndirectory = "/"', "'storages[0].name' must be letters", ""),
        ('[[storages]]\nname = "a"', "storage 'a' has no directory", ""),
        ('[[storages]]\nname = "a"\ndirectory = "/"\naffinity = -1', "it cannot be negative", ""),
        ('storages = [{name="a", directory="/x"}, {name="a", directory="/y"}]', "two storages have the name 'a'", ""),
        ('storages = [{name="a", directory="/x"}, {name="b", directory="/x"}]', "the directory '/x'", ""),
        ('http = "nonsense"', "'nonsense' is not an address", "HOST:PORT"),
        ('http = "::1:80"', "'::1:80' is not an address", "brackets"),
        ('http = "h:70000"', "'h:70000' is not an address", ""),
        ("data = ", "is not TOML", ""),
    ],
)
def test_what_makes_no_sense_is_named(
    tmp_path: Path, environ: dict[str, str], text: str, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config.daemon_config(config=write(tmp_path, text), environ=environ)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_file_that_was_asked_for_must_exist(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        config.daemon_config(config=tmp_path / "none.toml", environ=environ)


@pytest.mark.parametrize("value", ["", "true", "1", "on"])
def test_http_without_an_address_is_the_usual_one(environ: dict[str, str], value: str) -> None:
    assert config.daemon_config(http=value, environ=environ).http == HttpAddress("localhost", 2319)


@pytest.mark.parametrize(
    ("text", "address"),
    [("h:1", HttpAddress("h", 1)), (":0", HttpAddress("", 0)), ("[::1]:5", HttpAddress("::1", 5))],
)
def test_http_addresses(text: str, address: HttpAddress) -> None:
    assert config.parse_http(text) == address


def test_http_can_be_turned_off_by_the_environment(tmp_path: Path, environ: dict[str, str]) -> None:
    file = write(tmp_path, "http = true")
    assert config.daemon_config(config=file, environ=environ).http == HttpAddress("localhost", 2319)
    assert config.daemon_config(config=file, environ=environ | {"QUERATOR_HTTP": "off"}).http is None


# Clients


def test_a_client_finds_the_daemon_of_its_own_machine(tmp_path: Path, environ: dict[str, str]) -> None:
    write(tmp_path, "", "x")
    found = config.client_settings(environ=environ)
    assert found.address == Setting(f"unix:{tmp_path}/.local/state/querator/querator.sock", "default")
    (tmp_path / ".config" / "querator").mkdir(parents=True)
    (tmp_path / ".config" / "querator" / "config.toml").write_text('data = "/srv/q"')
    assert config.client_settings(environ=environ).address.value == "unix:/srv/q/querator.sock"


def test_flag_environment_context_file_in_that_order(tmp_path: Path, environ: dict[str, str]) -> None:
    file = write(tmp_path, '[client]\nendpoint = "http://file:1"')
    contexts = Contexts("prod", {"prod": Context(endpoint="http://context:2", token_file="/t"), "dev": Context()})
    config.save_contexts(contexts, environ)
    ask = lambda **more: config.client_settings(config=file, environ=environ, **more)  # noqa: E731
    assert ask().address == Setting("http://context:2", "context prod")
    assert ask().token_file == Setting("/t", "context prod")
    assert ask(context="dev").address == Setting("http://file:1", str(file))
    environ["QUERATOR_SOCKET"] = "/s.sock"
    assert ask().address == Setting("unix:/s.sock", "QUERATOR_SOCKET")
    assert ask(endpoint="http://flag:3").address == Setting("http://flag:3", "flag")


def test_a_stored_token_goes_only_to_the_daemon_it_was_stored_with(tmp_path: Path, environ: dict[str, str]) -> None:
    file = write(tmp_path, '[client]\nendpoint = "http://file:1"\ntoken_file = "/of-file"\nclient_key = "/key-of-file"')
    contexts = Contexts("prod", {"prod": Context(endpoint="http://context:2", token_file="/of-prod", client_cert="/c")})
    contexts.by_name |= {"bare": Context(endpoint="http://bare:2"), "unplaced": Context(token_file="/of-unplaced")}
    config.save_contexts(contexts, environ)

    def files(**more: str) -> tuple[str, str, str]:
        found = config.client_settings(config=file, environ=environ, **more)
        return found.token_file.value, found.client_cert.value, found.client_key.value

    assert files() == ("/of-prod", "/c", "")
    assert files(endpoint="http://elsewhere:3") == ("", "", "")
    assert files(socket="/s") == ("", "", "")
    assert files(endpoint="http://elsewhere:3", token_file="/of-flag") == ("/of-flag", "", "")
    assert files(context="bare") == ("", "", "")
    assert files(context="unplaced") == ("/of-unplaced", "", "/key-of-file")
    environ["QUERATOR_ENDPOINT"] = "http://elsewhere:4"
    assert files() == ("", "", "")
    environ["QUERATOR_TOKEN_FILE"] = "/of-variable"
    assert files() == ("/of-variable", "", "")


def test_an_endpoint_and_a_socket_exclude_each_other(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="both an endpoint and a socket"):
        config.client_settings(endpoint="http://h:1", socket="/s", environ=environ)


def test_an_unknown_context_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(NotFound, match="no context 'nope'"):
        config.client_settings(context="nope", environ=environ)


def test_contexts_come_back_as_they_were_saved(environ: dict[str, str]) -> None:
    assert config.load_contexts(environ) == Contexts()
    contexts = Contexts("a b", {"a b": Context(socket='/with "quotes"\\ and é🚀'), "x": Context(endpoint="http://x")})
    config.save_contexts(contexts, environ)
    assert config.load_contexts(environ) == contexts
    assert config.contexts_path(environ).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("current = 1", "'current' must be text, not 1", ""),
        ("contexts = 1", "'contexts' must be a table", ""),
        ("[contexts]\nprod = 1", "'contexts.prod' must be a table", ""),
        ("[contexts.prod]\nsocket = 1", "'contexts.prod.socket' must be text, not 1", ""),
        ('[contexts.prod]\nendpont = ""', "unknown key 'contexts.prod.endpont'", "did you mean 'endpoint'?"),
    ],
)
def test_a_wrong_contexts_file_is_refused_by_name(environ: dict[str, str], text: str, message: str, hint: str) -> None:
    path = config.contexts_path(environ)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load_contexts(environ)
    assert caught.value.message.startswith(f"{path}: {message}")
    assert caught.value.hint == hint


def test_the_token_is_read_from_its_file(tmp_path: Path, environ: dict[str, str]) -> None:
    token = write(tmp_path, "secret\n", "token")
    token.chmod(0o600)
    assert config.client_settings(token_file=str(token), environ=environ).token() == "secret"
    assert config.client_settings(environ=environ).token() == ""


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path, environ: dict[str, str], mode: int) -> None:
    token = write(tmp_path, "secret\n", "token")
    token.chmod(mode)
    with pytest.raises(ConfigError, match="can be read by others") as caught:
        config.client_settings(token_file=str(token), environ=environ).token()
    assert caught.value.hint == f"chmod 600 {token}"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "two words", "line\nline", "dröge", "\x00"])
def test_a_file_without_a_token_is_refused_and_not_shown(tmp_path: Path, environ: dict[str, str], text: str) -> None:
    token = write(tmp_path, text, "token")
    token.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        config.client_settings(token_file=str(token), environ=environ).token()
    assert not text or text not in caught.value.message


def test_a_token_in_a_variable_comes_after_files_that_are_named_and_before_a_context(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    token = write(tmp_path, "from-file", "token")
    token.chmod(0o600)
    contexts = Contexts("prod", {"prod": Context(endpoint="http://context:2", token_file=str(token))})
    config.save_contexts(contexts, environ)
    assert config.client_settings(environ=environ).token() == "from-file"
    environ = {**environ, "QUERATOR_TOKEN": "from-variable"}
    settings = config.client_settings(environ=environ)
    assert (settings.token(), settings.token_file.origin) == ("from-variable", "QUERATOR_TOKEN")
    assert "from-variable" not in repr(settings)
    assert config.client_settings(token_file=str(token), environ=environ).token() == "from-file"
    assert config.client_settings(environ={**environ, "QUERATOR_TOKEN_FILE": str(token)}).token() == "from-file"


@pytest.mark.parametrize("setting", ['keep = "-1d"', 'keep = "0s"', 'interval = "-1s"', 'heartbeat = "0s"'])
def test_durations_of_an_archive_are_more_than_zero(setting: str, tmp_path: Path, environ: dict[str, str]) -> None:
    """With a negative `keep`, everything in the archive would count as too old."""
    file = write(tmp_path, f'[archive]\nurl = "file:///srv/archive"\n{setting}\n')
    name, _, value = setting.partition(" = ")
    with pytest.raises(ConfigError, match=f"'archive.{name}' must be more than 0, not '{value.strip(chr(34))}'"):
        config.daemon_config(config=file, environ=environ)
