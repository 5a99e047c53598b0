"""This machine: real environments, real exporters, and secrets that must show nowhere."""

import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from otel_rollout import doctor
from otel_rollout.configuration import to_variable
from otel_rollout.doctor import variables
from otel_rollout.doctor.report import Diagnosis, Row, Verdict
from otel_rollout.settings import CONFIG_VARIABLE

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
    """Sets variables and examines."""

    def examine(**given):
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        return doctor.examine()

    return examine


def test_nothing_set_is_a_warning(environment):
    """Tracing may be switched on in code, which nobody can see from outside."""
    diagnosis = environment()
    assert only(diagnosis, "tracing").verdict is Verdict.WARN
    assert "OTEL_TRACES_EXPORTER=mlflow" in only(diagnosis, "tracing").advice
    assert diagnosis.exit_status == 0


def test_all_is_well(environment, tmp_path):
    """Every check passes, and each says what it found."""
    diagnosis = environment(OTEL_TRACES_EXPORTER="test-checked", OTEL_TEST_ENDPOINT="fine")
    assert diagnosis.verdict is Verdict.OK, diagnosis
    assert [row.check for row in diagnosis.rows] == [
        "tracing",
        "library",
        "python",
        "variables",
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


def test_switched_off_is_a_warning(environment):
    """The variable that does it is named."""
    diagnosis = environment(OTEL_TRACES_EXPORTER="test-plain", OTEL_SDK_DISABLED="true")
    assert "OTEL_SDK_DISABLED" in only(diagnosis, "tracing").found
    assert only(diagnosis, "tracing").verdict is Verdict.WARN


def test_set_up_by_the_process_that_started_this_one(environment):
    """The variable that carries ``configure()`` is named as the source, and listed nowhere else."""
    config = to_variable({"exporters": {"test-plain": {"path": "/dev/null", "token": SECRET}}})
    diagnosis = environment(**{CONFIG_VARIABLE: config})
    assert only(diagnosis, "tracing").found == f"on: {CONFIG_VARIABLE} names test-plain"
    assert CONFIG_VARIABLE not in only(diagnosis, "variables").found
    assert SECRET not in everything_shown(diagnosis)


@pytest.mark.parametrize("wrong", ["-1", SECRET])
def test_a_wrong_value_fails_and_is_not_shown(environment, wrong):
    """The variable is named, and what is wrong with it."""
    diagnosis = environment(OTEL_ROLLOUT_VALUE_LIMIT=wrong)
    assert only(diagnosis, "tracing").verdict is Verdict.FAIL
    assert only(diagnosis, "tracing").found.startswith("OTEL_ROLLOUT_VALUE_LIMIT is ")
    assert wrong not in only(diagnosis, "tracing").found
    assert diagnosis.exit_status == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nonesuch", "no span exporter is called 'nonesuch'"),
        ("test-absent", "needs a package that is missing"),
        ("test-demanding", "OTEL_TEST_TOKEN is '$OTEL_TEST_TOKEN', which is no good"),
        ("mlflow", "No MLflow tracking URI"),
    ],
)
def test_an_exporter_that_cannot_be_used_fails(environment, name, words):
    """With the words that it has for it."""
    diagnosis = environment(OTEL_TRACES_EXPORTER=name, OTEL_TEST_TOKEN=SECRET)
    assert only(diagnosis, "exporter").verdict is Verdict.FAIL
    assert words in only(diagnosis, "exporter").found
    assert rows(diagnosis, "endpoint") == []
    assert SECRET not in everything_shown(diagnosis)


@pytest.mark.parametrize("wish", ["unavailable", "refused", "rejected", "broken"])
def test_an_endpoint_that_does_not_take_spans_fails(environment, wish):
    """Whatever the reason, its words are shown and our secrets are not."""
    diagnosis = environment(
        OTEL_TRACES_EXPORTER="test-checked", OTEL_TEST_ENDPOINT=wish, OTEL_TEST_TOKEN=SECRET
    )
    assert only(diagnosis, "endpoint").verdict is Verdict.FAIL
    assert "$OTEL_TEST_TOKEN" in only(diagnosis, "endpoint").found
    assert SECRET not in everything_shown(diagnosis)


def test_an_exporter_without_a_check_is_a_warning(environment, tmp_path):
    """That something was not checked is no "ok"."""
    diagnosis = environment(OTEL_TRACES_EXPORTER="test-plain", OTEL_TEST_FILE=str(tmp_path / "file"))
    assert only(diagnosis, "endpoint").verdict is Verdict.WARN


def test_the_json_alone_is_on_stdout(environment, capsys):
    """What exporters print goes elsewhere."""
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
def test_parts_of_a_value_are_hidden(value, text):
    """Libraries quote what they made of a value, not the value."""
    assert SECRET not in variables.hide(text, {"OTEL_X": value})


def test_words_that_are_no_secrets_stay():
    """Flags, names of exporters and variables of others are left alone."""
    environ = {"OTEL_TRACES_EXPORTER": "mlflow", "OTEL_SDK_DISABLED": "true", "HOME": "home"}
    assert variables.hide("mlflow is true at home", environ) == "mlflow is true at home"


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
    """In variables and options, with or without a scheme."""
    assert variables.loopback(environ, options) == found


def test_the_table_names_each_advice_once():
    """However many nodes need it."""
    bad = [Row(f"node {n}", "library", Verdict.FAIL, "[absent]", "Install it.") for n in range(3)]
    diagnosis = Diagnosis((Row("this machine", "tracing", Verdict.OK, "on"), *bad))
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


def test_nothing_heavy_is_imported():
    """Neither by the library, nor by the doctor's own package."""
    code = (
        "import sys, otel_rollout; assert 'otel_rollout.doctor' not in sys.modules;"
        "import otel_rollout.doctor;"
        "print([name for name in ('ray', 'mlflow', 'requests', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout == "[]\n"
