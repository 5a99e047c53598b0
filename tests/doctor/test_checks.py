"""Check this machine, with real environments, exporters and secrets."""

import dataclasses
import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from otel_rollout import doctor
from otel_rollout.doctor import variables
from otel_rollout.doctor.diagnosis import Diagnosis, DoctorFinding, Verdict
from otel_rollout.settings import CONFIG_VARIABLE, Settings
from otel_rollout.settings_reader import to_variable

SECRET = "sesame-4711"


def rows(diagnosis, check):
    return [row for row in diagnosis.rows if row.check == check]


def only(diagnosis, check):
    (row,) = rows(diagnosis, check)
    return row


def everything_shown(diagnosis) -> str:
    console = Console(file=io.StringIO(), width=1000)
    doctor.show(diagnosis, console)
    return console.file.getvalue() + json.dumps(diagnosis.as_json())


@pytest.fixture
def environment(monkeypatch, checked_exporters):
    """Return a function that sets variables and examines this machine."""

    def examine(**given):
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        return doctor.examine()

    return examine


def test_environment_without_variables_is_a_warning(environment):
    """Tracing may still be switched on in code, which the doctor cannot see."""
    diagnosis = environment()
    assert only(diagnosis, "tracing").verdict is Verdict.WARN
    assert "OTEL_TRACES_EXPORTER=mlflow" in only(diagnosis, "tracing").advice
    assert diagnosis.exit_status == 0


def test_configuration_file_of_the_sdk_is_a_warning(environment):
    """The file would hide OTEL_ variables from the SDK alone; a person may expect it of both."""
    diagnosis = environment(
        OTEL_TRACES_EXPORTER="test-checked", OTEL_TEST_ENDPOINT="fine", OTEL_CONFIG_FILE="/etc/otel.yaml"
    )
    (present, ignored) = rows(diagnosis, "variables")
    assert "OTEL_CONFIG_FILE" in present.found
    assert ignored.verdict is Verdict.WARN
    assert ignored.found == (
        "OTEL_CONFIG_FILE is set: the SDK takes its settings from there, otel-rollout does not"
    )
    assert only(diagnosis, "tracing").verdict is Verdict.OK
    assert diagnosis.exit_status == 0


def test_valid_environment_passes_every_check(environment, tmp_path):
    """Every check passes, and each row says what was found."""
    diagnosis = environment(OTEL_TRACES_EXPORTER="test-checked", OTEL_TEST_ENDPOINT="fine")
    independent = [row for row in diagnosis.rows if row.check != "frameworks"]  # of what is installed here
    assert {row.verdict for row in independent} == {Verdict.OK}, diagnosis
    assert [row.check for row in independent] == [
        "tracing",
        "library",
        "python",
        "variables",
        "instrumentors",
        "other spans",
        "traceparent",
        "spool",
        "exporter",
        "endpoint",
    ]
    assert only(diagnosis, "tracing").found == "on: OTEL_TRACES_EXPORTER names test-checked"
    assert sys.executable in only(diagnosis, "python").found
    assert only(diagnosis, "variables").found == (
        "OTEL_ROLLOUT_SPOOL_DIR, OTEL_TEST_ENDPOINT, OTEL_TRACES_EXPORTER"
    )
    assert only(diagnosis, "spool").found.startswith("$OTEL_ROLLOUT_SPOOL_DIR can be created")
    assert not (tmp_path / "spool").exists()


def test_disabled_tracing_is_a_warning(environment):
    """The variable that disables tracing is named."""
    diagnosis = environment(OTEL_TRACES_EXPORTER="test-plain", OTEL_SDK_DISABLED="true")
    assert "OTEL_SDK_DISABLED" in only(diagnosis, "tracing").found
    assert only(diagnosis, "tracing").verdict is Verdict.WARN


def test_configuration_of_the_parent_process_is_named_as_source(environment):
    """The variable that carries ``configure()`` is named as the source only."""
    config = to_variable({"exporters": {"test-plain": {"path": "/dev/null", "token": SECRET}}})
    diagnosis = environment(**{CONFIG_VARIABLE: config})
    assert only(diagnosis, "tracing").found == f"on: {CONFIG_VARIABLE} names test-plain"
    assert CONFIG_VARIABLE not in only(diagnosis, "variables").found
    assert SECRET not in everything_shown(diagnosis)


@pytest.mark.parametrize("wrong", ["-1", SECRET])
def test_invalid_value_fails_and_is_not_shown(environment, wrong):
    """The row names the variable and what is wrong, without the value."""
    diagnosis = environment(OTEL_ROLLOUT_VALUE_LIMIT=wrong)
    assert only(diagnosis, "tracing").verdict is Verdict.FAIL
    assert only(diagnosis, "tracing").found.startswith("OTEL_ROLLOUT_VALUE_LIMIT is ")
    assert wrong not in only(diagnosis, "tracing").found
    assert diagnosis.exit_status == 1


def test_misspelt_redaction_fails(environment):
    """A program records nothing then: tracing is not called on, and the row has the word that is meant."""
    found = only(environment(OTEL_TRACES_EXPORTER="spool", OTEL_ROLLOUT_REDACT="secret"), "tracing")
    assert found.verdict is Verdict.FAIL
    assert "(did you mean 'secrets'?); tracing is off." in found.found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nonesuch", "no span exporter is called 'nonesuch'"),
        ("test-absent", "needs a package that is missing"),
        ("test-demanding", "OTEL_TEST_TOKEN is '$OTEL_TEST_TOKEN', which is no good"),
        ("mlflow", "No MLflow tracking URI"),
    ],
)
def test_unusable_exporter_fails_with_its_own_message(environment, name, words):
    """The row quotes the exporter's error, with secrets masked."""
    diagnosis = environment(OTEL_TRACES_EXPORTER=name, OTEL_TEST_TOKEN=SECRET)
    assert only(diagnosis, "exporter").verdict is Verdict.FAIL
    assert words in only(diagnosis, "exporter").found
    assert rows(diagnosis, "endpoint") == []
    assert SECRET not in everything_shown(diagnosis)


def test_variables_of_an_exporter_are_listed_and_masked(environment):
    """Variables that begin with an exporter's name are listed; their own names stand for values."""
    config = to_variable({"target_variables": f"TEST_DEMANDING_TOKEN={SECRET}"})
    diagnosis = environment(
        OTEL_TRACES_EXPORTER="test-demanding",
        OTEL_TEST_TOKEN="unused",
        TEST_DEMANDING_TOKEN=SECRET,
        **{CONFIG_VARIABLE: config},
    )
    assert "TEST_DEMANDING_TOKEN" in only(diagnosis, "variables").found
    assert SECRET not in everything_shown(diagnosis)
    environ = {**os.environ}
    assert variables.mask(f"it is {SECRET!r}", environ) == "it is '$TEST_DEMANDING_TOKEN'"


@pytest.mark.parametrize("wish", ["unavailable", "refused", "rejected", "broken"])
def test_endpoint_that_does_not_accept_spans_fails(environment, wish):
    """The row quotes the reason, with secrets masked."""
    diagnosis = environment(
        OTEL_TRACES_EXPORTER="test-checked", OTEL_TEST_ENDPOINT=wish, OTEL_TEST_TOKEN=SECRET
    )
    assert only(diagnosis, "endpoint").verdict is Verdict.FAIL
    assert "$OTEL_TEST_TOKEN" in only(diagnosis, "endpoint").found
    assert SECRET not in everything_shown(diagnosis)


def test_exporter_without_check_is_a_warning(environment, tmp_path):
    """An endpoint that was not checked is not "ok"."""
    diagnosis = environment(OTEL_TRACES_EXPORTER="test-plain", OTEL_TEST_FILE=str(tmp_path / "file"))
    assert only(diagnosis, "endpoint").verdict is Verdict.WARN


def test_output_of_exporters_goes_to_stderr(environment, capsys):
    """Standard output is left to the JSON."""
    environment(OTEL_TRACES_EXPORTER="test-checked", OTEL_TEST_ENDPOINT="fine")
    output = capsys.readouterr()
    assert output.out == ""
    assert "an exporter that prints" in output.err


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (f"Bearer {SECRET}", f"header {SECRET} refused"),
        (f"Authorization=Basic%20{SECRET},x=y", f"Basic {SECRET}"),
        (f"http://user:{SECRET}@host:1/", f"cannot reach http://user:{SECRET}@host:1"),
        (f"http://user:{SECRET}%21@host:1/", f"password {SECRET}! refused"),
        (f"http://host/?key={SECRET}", f"GET /?key={SECRET}"),
        (f'{{"exporters": {{"x": {{"token": "{SECRET}"}}}}}}', f"no {SECRET}"),
        (f"{SECRET}\n", repr(f"{SECRET}\n")),
    ],
)
def test_quoted_parts_of_a_value_are_masked(value, text):
    """Libraries quote decoded or split forms of a value."""
    assert SECRET not in variables.mask(text, {"OTEL_X": value})


def test_masked_value_has_the_name_of_the_variable_that_a_person_has_set() -> None:
    """The variable that this library writes repeats values of others, and nobody can correct it."""
    environ = {"MLFLOW_EXPERIMENT_NAME": "secret", "OTEL_ROLLOUT_CONFIG": '{"target": "secret"}'}
    assert variables.mask("no secret here", environ) == "no $MLFLOW_EXPERIMENT_NAME here"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("http://127.0.0.1:5999", "http://127.0.0.1:5999/v1/traces"),
        (f"http://user:{SECRET}@host:4318/", "http://host:4318/v1/traces"),
        (f"https://host/path?key={SECRET}", "https://host/path/v1/traces"),
        ("collector:4317", "collector:4317"),
    ],
)
def test_address_is_shown_without_what_may_be_secret(value: str, shown: str) -> None:
    """A person must check the address: it stays, also where the variable that this library writes has it."""
    name = "OTEL_EXPORTER_OTLP_ENDPOINT"
    environ = {name: value, "OTEL_ROLLOUT_CONFIG": json.dumps({"target": value})}
    assert variables.mask(f"no server at {shown} ({name})", environ) == f"no server at {shown} ({name})"
    assert SECRET not in variables.mask(f"no server at {value}", environ)


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_X_KEY_URL"])
def test_credential_is_masked_where_an_address_is_expected(name: str) -> None:
    """A word without a port is no address, and a variable may be named as a credential's."""
    value = SECRET if "KEY" not in name else f"http://{SECRET}"
    assert SECRET not in variables.mask(f"no server at {value}", {name: value})


def test_closed_port_is_named_with_its_address(environment):
    """The row has the address that one wants to check, and no query."""
    endpoint = "http://127.0.0.1:1"
    found = environment(OTEL_TRACES_EXPORTER="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=f"{endpoint}?key={SECRET}")
    assert f"endpoint {endpoint}/v1/traces (OTEL_EXPORTER_OTLP_ENDPOINT)" in only(found, "endpoint").found
    assert SECRET not in everything_shown(found)


def test_text_without_secrets_stays():
    """Flags, names of exporters and values of unrelated variables are not masked."""
    environ = {"OTEL_TRACES_EXPORTER": "mlflow", "OTEL_SDK_DISABLED": "true", "HOME": "home"}
    assert variables.mask("mlflow is true at home", environ) == "mlflow is true at home"


@pytest.mark.parametrize(
    "environ",
    [
        {CONFIG_VARIABLE: to_variable(dataclasses.asdict(Settings()))},
        {"OTEL_ROLLOUT_TURNS": "all", "OTEL_ROLLOUT_SAMPLE_VALIDATION": "sampled"},
    ],
)
def test_words_that_a_setting_chooses_from_are_not_masked(environ: dict[str, str]) -> None:
    """A choice such as `all`, and a default, are no secrets, and are parts of other words."""
    text = "'detla' is called wrong, none of sampled, always; otel-rollout installed"
    assert variables.mask(text, environ) == text


@pytest.mark.parametrize(
    ("environ", "options", "found"),
    [
        ({"MLFLOW_TRACKING_URI": "http://127.0.0.1:5000"}, {}, ["MLFLOW_TRACKING_URI"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317"}, {}, ["OTEL_EXPORTER_OTLP_ENDPOINT"]),
        ({"WANDB_BASE_URL": "http://user:word@[::1]:80"}, {}, ["WANDB_BASE_URL"]),
        ({"MLFLOW_TRACKING_URI": "http://mlflow:5000"}, {}, []),
        ({"MLFLOW_TRACKING_URI": "http://localhost.example.org"}, {}, []),
        ({"MLFLOW_TRACKING_URI": "sqlite:////tmp/localhost"}, {}, []),
        ({"OTEL_SERVICE_NAME": "localhost"}, {}, []),
        ({"MLFLOW_TRACKING_URI": "http://[bad"}, {}, []),
        ({}, {"mlflow": {"tracking_uri": "http://localhost:1"}}, ["mlflow(tracking_uri=…)"]),
        ({}, {"otlp": {}}, ["the default endpoint of otlp"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://gateway:4318"}, {"otlp": {}}, []),
        ({}, {"otlp": {"endpoint": "http://gateway:4318"}}, []),
    ],
)
def test_loopback_addresses_are_found(environ, options, found):
    """Addresses are found in variables and options, with or without a scheme."""
    assert variables.on_loopback(environ, options) == found


def test_lines_break_at_blanks_alone():
    """In a narrow terminal a path longer than the line stays whole, so that it can be pasted."""
    path = "/scratch/" + "a-long/folder/" * 8
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    finding = DoctorFinding(
        "spool", Verdict.FAIL, f"{path} " + "is not writable " * 9, f"Look at {path} there."
    )
    doctor.show(Diagnosis((finding.at("this machine"),)), console)
    shown = console.file.getvalue()
    assert shown.count(path) == 2
    assert {len(line) > 60 for line in shown.splitlines() if path not in line} == {False}


def test_advice_for_several_nodes_is_shown_once():
    """The line of the advice names every node that needs it."""
    bad = [DoctorFinding("library", Verdict.FAIL, "[absent]", "Install it.", f"node {n}") for n in range(3)]
    diagnosis = Diagnosis((DoctorFinding("tracing", Verdict.OK, "on", where="this machine"), *bad))
    shown = everything_shown(diagnosis)
    assert "fail: node 0, node 1, node 2: library: Install it.\n" in shown
    assert "[absent]" in shown
    assert diagnosis.as_json()["verdict"] == "fail"
    assert diagnosis.as_json()["rows"][0] == {
        "where": "this machine",
        "check": "tracing",
        "verdict": "ok",
        "found": "on",
        "advice": "",
    }


def test_importing_the_doctor_imports_no_heavy_package():
    """Neither the library nor the doctor imports Ray, MLflow, requests or rich."""
    code = (
        "import sys, otel_rollout; assert 'otel_rollout.doctor' not in sys.modules;"
        "import otel_rollout.doctor;"
        "print([name for name in ('ray', 'mlflow', 'requests', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout == "[]\n"
