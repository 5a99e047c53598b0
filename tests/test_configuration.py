"""Configuration: arguments win over variables, these over defaults.

Mistakes stop no training.
"""

import dataclasses
import itertools
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_rollout
from otel_rollout import SettingsError, rollout_trace_attr, settings, settings_reader
from otel_rollout.base import setting_parsers
from otel_rollout.base.environment import DELIVERY_PREFIXES
from otel_rollout.base.version import VERSION
from otel_rollout.record.launch import launcher
from otel_rollout.record.runs import membership
from otel_rollout.spool import layout


def test_defaults_leave_tracing_off():
    """Without any variable nothing is recorded."""
    configured, problems = settings_reader.from_environment({})
    assert not configured.enabled
    assert problems == []


def test_every_setting_is_read_from_its_variable():
    """Each field of Settings has a variable that sets it."""
    examples = {
        "exporters": ("mlflow, weave", {"mlflow": {}, "weave": {}}),
        "sdk_disabled": ("true", True),
        "project_name": ("p", "p"),
        "experiment_name": ("e", "e"),
        "service_name": ("s", "s"),
        "resource_attributes": ("a=b%20c,d=e", {"a": "b c", "d": "e"}),
        "sampler": ("traceidratio", "traceidratio"),
        "sampler_arg": ("0.5", "0.5"),
        "spool_dir": ("/spool", Path("/spool")),
        "run_id": ("r", "r"),
        "node": ("n", "n"),
        "home_node": ("h", "h"),
        "working_dir": ("/here", "/here"),
        "target_variables": ("A=b,C=d", {"A": "b", "C": "d"}),
        "traceparent_hosts": ("Private, *.svc, [2001:db8::1]", "private,*.svc,2001:db8::1"),
        "identity_hosts": ("*.local,sandbox", "*.local,sandbox"),
        "application_provider": ("Apart", "apart"),
        "capture_content": ("none", "none"),
        "receive": (":4318", "127.0.0.1:4318"),
        "receive_token": (" secret ", "secret"),
        "receive_traces": ("Trajectories", "trajectories"),
        "redact": ("secrets", "secrets"),
        "token2text": ("true", True),
        "tokenizer": ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        "turns": ("all", "all"),
        "value_limit": ("7", 7),
        "spool_limit": ("0", 0),
        "sample_rate": ("0.25", 0.25),
        "sample_every": ("10", 10),
        "sample_validation": ("Always", "always"),
        "sample_groups": ("4", 4),
        "sample_seed": ("7", "7"),
        "outcome_keep": (" errors, spread=0.5 ", "errors, spread=0.5"),
        "outcome_score": ("acc", "acc"),
        "outcome_bytes": ("1000000", 1_000_000),
        "outcome_deadline": ("60", 60.0),
        "keep": ("true", True),
        "metrics": ("true", True),
        "training_tokens": ("true", True),
        "step_metrics": ("MLflow", "mlflow"),
        "delta_compact": ("false", False),
        "delta_keep": (" 30d ", "30d"),
        "shutdown_timeout": ("1.5", 1.5),
        "instrument": ("openai,langchain", "openai,langchain"),
        "forwarder_linger": ("0", 0.0),
        "forwarder_variables": ("LANGFUSE_*", "LANGFUSE_*"),
    }
    fields = {field.name: field for field in dataclasses.fields(settings.Settings)}
    assert examples.keys() == fields.keys()
    environ = {settings.variable_of(fields[name]): raw for name, (raw, _) in examples.items()}
    configured, problems = settings_reader.from_environment(environ)
    assert problems == []
    assert {name: getattr(configured, name) for name in examples} == {
        name: value for name, (_, value) in examples.items()
    }


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OTEL_ROLLOUT_VALUE_LIMIT", "many", "is not an integer"),
        ("OTEL_ROLLOUT_VALUE_LIMIT", "0", "is less than 1"),
        ("OTEL_ROLLOUT_SHUTDOWN_TIMEOUT", "nan", "is not a number"),
        ("OTEL_ROLLOUT_KEEP", "1", "is neither true nor false; the default is used: False."),
        ("OTEL_ROLLOUT_SPOOL_LIMIT", "5GB", "is not an integer; the default is used: 0."),
        ("OTEL_ROLLOUT_DELTA_KEEP", "30", "cannot be read: write hours, days or weeks, as 12h, 30d or 2w"),
        ("OTEL_ROLLOUT_DELTA_KEEP", "0d", "is no time"),
        ("OTEL_RESOURCE_ATTRIBUTES", "foo", "is not key=value,key=value: look at entry 1, 'foo'; the"),
        ("OTEL_RESOURCE_ATTRIBUTES", "token=a,b", "is not key=value,key=value: look at entry 2; the"),
        ("OTEL_ROLLOUT_TRACEPARENT_HOSTS", "private,http://vllm", "'http://vllm', which is no host"),
        ("OTEL_ROLLOUT_TRACEPARENT_HOSTS", "vllm:8000", "leave out scheme, port and path"),
        ("OTEL_ROLLOUT_TRACEPARENT_HOSTS", "[::1]:8000", "leave out scheme, port and path"),
        ("OTEL_ROLLOUT_CONFIG", "{", "cannot be read"),
    ],
)
def test_wrong_variable_is_named_and_its_default_used(variable, value, message):
    """The message has the variable, the mistake and the consequence."""
    configured, (problem,) = settings_reader.from_environment({variable: value})
    assert variable in problem
    assert message in problem
    assert configured == settings.Settings()


def test_settings_of_a_newer_founder_are_named_and_the_others_used():
    """A worker that is older than its driver stays in the run."""
    config = json.dumps({"run_id": "run", "value_limit": 9, "later": {"a": 1}, "delivery": {"even_later": 1}})
    configured, (problem,) = settings_reader.from_environment({"OTEL_ROLLOUT_CONFIG": config})
    assert (configured.run_id, configured.value_limit) == ("run", 9)
    assert problem == (
        f"OTEL_ROLLOUT_CONFIG: a newer otel-rollout started the run. Version {VERSION} of this process "
        "does not know its settings later; they have no effect here."
    )


@pytest.mark.parametrize(
    ("setting", "value", "used"),
    [
        ("turns", "later", "tokens"),
        ("value_limit", {"bytes": 9}, 1 << 20),
        ("training_tokens", "some", False),
        ("capture_content", "later", "none"),
        ("redact", ["secrets"], "everything"),
        ("redact", "secrets,later", "everything"),
        ("exporters", {"delta": {"uri": "x"}, "later": ["a"]}, {"delta": {"uri": "x"}}),
        ("exporters", 7, {"spool": {}}),
    ],
)
def test_value_of_a_newer_founder_costs_its_own_setting_alone(setting, value, used):
    """Recording goes on, with no more content than the founder meant, and one line names all versions."""
    published = {"run_id": "run", "exporters": {"spool": {}}, setting: value}
    config = json.dumps({**published, "delivery": {"version": "9.9.1", setting: value, "keep": True}})
    environ = {"OTEL_ROLLOUT_CONFIG": config}
    configured, (problem,) = settings_reader.from_environment(environ)
    assert (configured.run_id, configured.enabled) == ("run", True)
    assert getattr(configured, setting) == used
    assert all(text in problem for text in (setting, "9.9.1", VERSION))
    assert setting == "exporters" or repr(value) in problem
    assert settings_reader.inherited(environ)["run_id"] == "run"
    of_forwarder = settings.Settings(**settings_reader.from_founder("run", environ))
    assert (of_forwarder.keep, getattr(of_forwarder, setting)) == (True, used)


@pytest.mark.parametrize(
    ("variable", "value", "used"),
    [
        ("OTEL_ROLLOUT_CAPTURE_CONTENT", "nothing", {"capture_content": "none"}),
        ("OTEL_ROLLOUT_REDACT", "secrets\udc80", {"redact": "everything"}),
    ],
)
def test_misspelt_setting_of_privacy_records_less(variable, value, used):
    """The default would record what somebody wanted to hide."""
    configured, (problem,) = settings_reader.from_environment({variable: value})
    assert variable in problem
    assert configured == settings.Settings(**used)


def test_processes_learn_the_version_of_the_founder(tmp_path, monkeypatch):
    """The founder publishes its version beside the forwarder's settings."""
    monkeypatch.delenv("OTEL_ROLLOUT_CONFIG", raising=False)
    otel_rollout.configure("spool", spool_dir=str(tmp_path))
    published = json.loads(os.environ["OTEL_ROLLOUT_CONFIG"])
    assert published["delivery"]["version"] == VERSION


def test_forwarder_of_an_older_worker_gets_the_settings_that_it_knows():
    """Settings of a newer founder are left out, and no other."""
    config = json.dumps({"run_id": "run", "delivery": {"later": 1, "value_limit": 9}})
    assert settings_reader.from_founder("run", {"OTEL_ROLLOUT_CONFIG": config}) == {"value_limit": 9}


VARIABLES = [settings.variable_of(field) for field in dataclasses.fields(settings.Settings)]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from([field.name for field in dataclasses.fields(settings.Settings)])
            | st.text(max_size=2),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(
    environ=st.dictionaries(st.sampled_from(VARIABLES), st.text(max_size=6)),
    config=st.none() | st.text(max_size=4) | json_values.map(json.dumps),
)
def test_no_variable_stops_a_program(environ, config):
    """Any variables give settings, and a sentence for each unusable value."""
    if config is not None:
        environ["OTEL_ROLLOUT_CONFIG"] = config
    configured, problems = settings_reader.from_environment(environ)
    assert isinstance(configured, settings.Settings)
    assert all(any(name in problem for name in environ) for problem in problems)


@pytest.mark.parametrize("place", ["~no-such-user/spool", "relative"])
def test_program_in_deleted_directory_runs(place, tmp_path):
    """A program runs in a deleted directory or with its spool in a missing home."""
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        f"import os; os.rmdir({str(gone)!r})\n"
        "import otel_rollout\n"
        "print(otel_rollout.rollout_trace_op(lambda x: x)(5), otel_rollout.shutdown(5).lost)"
    )
    environ = {**os.environ, "OTEL_TRACES_EXPORTER": "spool", "OTEL_ROLLOUT_SPOOL_DIR": place}
    environ["PYTHONPATH"] = str(Path(__file__).parent.parent)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=gone, env=environ)
    assert (ran.returncode, ran.stdout) == (0, "5 0\n"), ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nonsense": 1}, "no setting 'nonsense'. Settings: .*project_name"),
        ({"value_limit": "many"}, r"configure\(value_limit='many'\): the value is not an integer"),
        ({"sdk_disabled": "true"}, "must be True or False"),
        ({"exporters": 3}, "must be a name, a list of names"),
        ({"exporters": ["mlflow", 3]}, "must be a name, a list of names"),
        ({"exporters": b"mlflow"}, "must be a name, a list of names"),
        ({"exporters": {3: {}}}, "has 3 as the name of an exporter, which must be text"),
        ({"project_name": ["a"]}, r"configure\(project_name=\['a'\]\): the value must be text, not list"),
        ({"project_name": 5}, r"configure\(project_name=5\): the value must be text, not int"),
        ({"experiment_name": 0.5}, "must be text, not float"),
        ({"value_limit": Path("1")}, "must be a whole number, not P"),
        ({"value_limit": 1.5}, "is not an integer"),
        ({"shutdown_timeout": True}, "must be a number, not bool"),
        ({"spool_dir": 5}, "must be text or a Path, not int"),
        ({"resource_attributes": {"a": ["b"]}}, "must map text to text, numbers or booleans"),
        ({"resource_attributes": {5: "b"}}, "must map text to text, numbers or booleans"),
    ],
)
def test_wrong_argument_raises_error_that_names_it(fresh_process, arguments, message):
    """configure() is called at the start of a program by a person, and may be strict."""
    with pytest.raises(SettingsError, match=message):
        otel_rollout.configure(**arguments)


WRONG = (
    st.binary(min_size=1, max_size=2) | st.lists(st.integers(), max_size=2) | st.builds(object) | st.just(1j)
)


@pytest.mark.parametrize("field", dataclasses.fields(settings.Settings), ids=lambda field: field.name)
@given(value=WRONG)
def test_argument_of_wrong_type_raises_error_that_names_it(field, value):
    """Bytes, lists, objects and complex numbers are values of no setting."""
    if field.name == "exporters" and value == []:  # no exporters: that is a value
        return
    with pytest.raises(SettingsError, match=rf"^configure\({field.name}="):
        settings_reader.checked_arguments({field.name: value})


def test_argument_that_may_be_text_or_number_accepts_both():
    """People write seeds and arguments of samplers as numbers, and paths as Paths."""
    given = {
        "sample_seed": 7,
        "sampler_arg": 0.5,
        "spool_dir": Path("a"),
        "tokenizer": Path("b"),
        "sample_rate": 1,
    }
    checked = settings_reader.checked_arguments(given)
    assert checked == {
        "sample_seed": "7",
        "sampler_arg": "0.5",
        "spool_dir": Path("a"),
        "tokenizer": "b",
        "sample_rate": 1.0,
    }
    assert settings_reader.as_inherited(checked) == checked


def test_arguments_win_over_the_environment(fresh_process, monkeypatch):
    """Settings that configure() does not name keep the values of their variables."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_ROLLOUT_PROJECT", "from environment")
    monkeypatch.setenv("OTEL_ROLLOUT_EXPERIMENT", "kept")
    otel_rollout.configure(project_name="from argument")
    configured = membership.decide()
    assert (configured.project_name, configured.experiment_name) == ("from argument", "kept")
    assert list(configured.exporters) == ["console"]


def test_child_process_joins_the_run_with_its_arguments(tracing):
    """A child process has the run id, project and exporters of its parent."""
    membership.decide()
    code = (
        "from otel_rollout.record.runs.membership import decide\n"
        "s = decide(); print(s.run_id, s.project_name, s.exporters)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    configured = membership.decide()
    assert ran.stdout.split(" ", 2) == [
        configured.run_id,
        "project",
        f"{configured.exporters}\n",
    ]


def test_import_founds_the_run_if_variables_switch_tracing_on():
    """A driver that only imports the package founds the run that its workers join."""
    code = "import otel_rollout, os; print('run_id' in os.environ.get('OTEL_ROLLOUT_CONFIG', ''))"
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "console", "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "0"}
    for exporter, announced in (("console", "True"), ("none", "False"), ("", "False")):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**environment, "OTEL_TRACES_EXPORTER": exporter},
        )
        assert ran.stdout.strip() == announced


def test_sdk_disabled_switches_tracing_off(fresh_process, monkeypatch, tmp_path):
    """OTEL_SDK_DISABLED=true wins over OTEL_TRACES_EXPORTER."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with rollout_trace_attr() as trajectory:
        pass
    assert trajectory.trace_id is None
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize("exporter", ["console", "delta"])
def test_only_who_chooses_the_console_is_told_where_it_prints(fresh_process, monkeypatch, caplog, exporter):
    """The forwarder prints, so the program's own terminal stays empty."""
    monkeypatch.setattr(launcher, "start_detached", lambda *_: None)
    otel_rollout.configure(exporter)
    with caplog.at_level(logging.WARNING, "otel_rollout"), rollout_trace_attr():
        pass
    log = Path(otel_rollout.status().directory) / layout.FORWARDER_LOG
    assert (f"prints into {log}" in caplog.text) == (exporter == "console")


def test_unusable_spool_switches_tracing_off_with_one_error(fresh_process, monkeypatch, tmp_path, caplog):
    """Training goes on if the spool directory cannot be made.

    One error says that tracing is off.
    """
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", str(tmp_path / "file" / "spool"))
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    with caplog.at_level(logging.ERROR, "otel_rollout"):
        for _ in range(3):
            with rollout_trace_attr():
                pass
    assert len(caplog.records) == 1
    assert "tracing is OFF" in caplog.text


def test_import_loads_no_heavy_module():
    """A worker that imports the package loads no backend, no framework and no SDK."""
    code = (
        "import sys, otel_rollout; heavy = {'mlflow', 'weave', 'ray', 'torch', 'transformers', 'numpy', "
        "'opentelemetry.sdk', 'requests', 'rich', 'typer', 'sqlite3', 'pydantic'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def rows_of_settings():
    """Return the rows of the page's table of settings: variable, argument, default, and what it means."""
    page = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()
    table = page.partition("| variable | `configure()` argument | default | meaning |\n|---|---|---|---|\n")[
        2
    ]
    lines = itertools.takewhile(lambda line: line.startswith("| "), table.splitlines())
    return [[cell.strip() for cell in line.strip("|").split(" | ", 3)] for line in lines]


def test_table_in_docs_is_that_of_the_settings():
    """docs/configuration.md says of each setting that a user may set its variable, default and meaning."""
    rows = []
    for field in dataclasses.fields(settings.Settings):
        default = "" if field.default is dataclasses.MISSING else field.default
        shown = f"`{default}`" if default not in ("", False) else ""
        if field.name not in ("working_dir", "target_variables"):  # made by the run's first process
            rows.append([f"`{settings.variable_of(field)}`", f"`{field.name}`", shown])
    documented = rows_of_settings()
    assert [row[:3] for row in documented] == rows
    assert all(meaning.endswith(".") for *_, meaning in documented)


def test_row_of_a_setting_names_every_word_that_it_takes():
    """Words of a choice, rules of tail sampling, and the variables that the forwarder gets."""
    meanings = {argument.strip("`"): meaning for _, argument, _, meaning in rows_of_settings()}
    with pytest.raises(ValueError, match="none of") as refused:
        setting_parsers.tail_rules("?")
    words = {
        name: get_args(type_)
        for name, type_ in get_type_hints(settings.Settings).items()
        if get_origin(type_) is Literal
    }
    words["outcome_keep"] = tuple(str(refused.value).partition("none of ")[2].split(", "))
    words["forwarder_variables"] = DELIVERY_PREFIXES
    assert len(words) > 7
    for name, each in words.items():
        said = (
            f"{meanings[name]} `{getattr(settings.Settings(), name)}`"  # the default has a column of its own
        )
        assert [word for word in each if f"`{word}" not in said] == []


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("OTEL_ROLLOUT_KEPP", "OTEL_ROLLOUT_KEEP"),
        ("OTEL_ROLLOUT_PROJECT_NAME", "OTEL_ROLLOUT_PROJECT"),
        ("OTEL_ROLOUT_KEEP", "OTEL_ROLLOUT_KEEP"),
        ("OTEL_ROLLOUT_SAMPEL", "OTEL_ROLLOUT_SAMPLE_RATE"),
        ("OTEL_TRACE_EXPORTER", "OTEL_TRACES_EXPORTER"),
        ("OTEL_TRACES_EXPORTERS", "OTEL_TRACES_EXPORTER"),
    ],
)
def test_misspelt_variable_is_named_with_the_closest_one(variable, meant):
    """Unknown names with the prefix or close to a known name are misspelt."""
    (sentence,) = settings_reader.unknown_variables({variable: "true"})
    assert variable in sentence
    assert f"Did you mean {meant!r}?" in sentence


def test_unknown_variable_with_prefix_is_named():
    """A variable that resembles no known one is named without a suggestion."""
    (sentence,) = settings_reader.unknown_variables({"OTEL_ROLLOUT_XYZZY": "1"})
    assert sentence == "OTEL_ROLLOUT_XYZZY is not a variable of otel-rollout and has no effect."


def test_known_variables_are_not_reported_as_unknown():
    """Variables of the SDK, of settings and of the package itself are known."""
    from opentelemetry.sdk import environment_variables

    others = [name for name in vars(environment_variables) if name.startswith("OTEL_")]
    ours = [settings.variable_of(field) for field in dataclasses.fields(settings.Settings)]
    internal = [settings.CONFIG_VARIABLE, settings.WARNED_VARIABLE]
    more = ["OTEL_PYTHON_TRACER_PROVIDER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER", "OTEL_CONFIG_FILE"]
    assert len(others) > 40
    assert settings_reader.unknown_variables(dict.fromkeys([*others, *ours, *internal, *more], "x")) == []


@pytest.mark.parametrize("enabled", [True, False])
def test_unknown_variables_are_warned_of_once_in_a_tree_of_processes(tmp_path, enabled):
    """The warning appears even if tracing is off, perhaps for a misspelt variable."""
    child = "import otel_rollout\nwith otel_rollout.rollout_trace_attr(step=1): pass\n"
    program = child + f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    environ = {**os.environ, "OTEL_ROLLOUT_KEPP": "true"}
    if enabled:
        environ |= {"OTEL_TRACES_EXPORTER": "spool"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stderr.count("OTEL_ROLLOUT_KEPP") == 1
    assert "Did you mean 'OTEL_ROLLOUT_KEEP'?" in ended.stderr


def test_misspelt_argument_raises_error_with_the_closest_one(fresh_process):
    """The error also lists all settings."""
    with pytest.raises(
        SettingsError, match=r"no setting 'projct_name'\. Did you mean 'project_name'\? Settings"
    ):
        otel_rollout.configure("spool", projct_name="p")


def test_misspelt_exporter_raises_error_with_the_closest_one(fresh_process):
    """configure() raises it before anything is recorded."""
    with pytest.raises(SettingsError, match=r"'mlfow'.*Did you mean 'mlflow'\?"):
        otel_rollout.configure("mlfow")


@pytest.mark.parametrize(
    ("exporter", "option", "meant"),
    [
        ("mlflow", "trackng_uri", "tracking_uri"),
        ("weave", "projct", "project"),
        ("otlp", "endpont", "endpoint"),
        ("console", "servce_name", "service_name"),
    ],
)
def test_a_misspelt_option_of_an_exporter_is_answered_with_the_one_that_was_meant(
    fresh_process, exporter, option, meant
):
    """configure() raises the error, rather than the forwarder an hour later."""
    with pytest.raises(
        SettingsError, match=f"exporter '{exporter}' has no option '{option}'. Did you mean '{meant}'"
    ):
        otel_rollout.configure({exporter: {option: "x"}})


def test_misspelt_exporter_in_variable_is_one_error_and_spans_are_kept():
    """The program goes on, and its last line says what to correct and how to deliver."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.programs.name_misspelt_exporter"],
        env={**os.environ, "OTEL_TRACES_EXPORTER": "mlfow"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    *errors, last = ended.stderr.splitlines()
    assert len([line for line in errors if "mlfow" in line]) == 1
    assert "Did you mean 'mlflow'?" in ended.stderr
    assert "It is kept on disk until this is corrected" in last
    assert re.search(r"Then deliver with: `otel-rollout forward --to mlflow --spool \S+`\.$", last)
