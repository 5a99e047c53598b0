"""By whom each block of the documentation is run: a named test, `test_blocks.py`, or nobody, for a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.docs_site.documents import Block


@dataclass(frozen=True)
class By:
    """Named tests run the block, or what the block starts.

    Attributes:
        tests: path and name of each.
    """

    tests: tuple[str, ...]

    def __init__(self, *tests: str) -> None:
        object.__setattr__(self, "tests", tests)


@dataclass(frozen=True)
class Typed:
    """`test_blocks.py` runs the block in a scratch directory."""


@dataclass(frozen=True)
class DevelopersRun:
    """The block's commands are targets of make and modules of this repository, of minutes or hours each."""


@dataclass(frozen=True)
class Skipped:
    """No test can run the block."""

    reason: str


Way = By | Typed | DevelopersRun | Skipped
TYPED = Typed()


@dataclass(frozen=True)
class Scratch:
    """What the directory has in which a page's blocks are typed.

    Attributes:
        table: the rollout table at ``./rollouts``: ``demo``, ``generated``, or none. The demo's spool is
            beside it, at ``./spool``.
        files: further files, by path.
        stands_in: commands that a script stands in for: it does nothing and exits with 0.
        replaced: text of the page → what is typed in its place, such as the id of the table's run.
        prelude: Python before the page's Python: names that the page takes for granted.
    """

    table: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    stands_in: tuple[str, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)
    prelude: str = ""


TRAIN = """
from otel_rollout import rollout_trace_attr, rollout_trace_op

@rollout_trace_op
def generate(prompt):
    return prompt.upper()

with rollout_trace_attr(step=1, sample_index=0):
    generate("hello")
print("trained")
"""
"""What stands for the reader's own training script."""
PROGRAM = {"train.py": TRAIN, "train_grpo.py": TRAIN}

QUESTIONS = "tests/table/test_documented_questions.py"
MLFLOW = "tests/mlflow/test_mlflow_docs.py"
NOTEBOOKS = "tests/runs/test_notebooks_page.py"
EXPORTER = "tests/exporting/test_page.py"
ENGINES = "tests/analysis/test_engines_page.py"
OWN_TRAINER = "tests/integrations/test_integrations_page.py"
JOINED_OPENAI = "tests/agents/test_joined_openai.py"
VERL = By("tests/verl/test_trainers.py::test_every_trajectory_has_one_trace")
DUMPS = "tests/dumps/test_commands.py"
COMING_FROM = "test_coming_from.py"
ON_RAY = "tests/propagation/test_ray_cluster.py::test_job_on_an_existing_cluster_continues_trajectories"

ROWS: dict[str, dict[str, Way]] = {
    "README.md": {
        "groups --sort": By(f"{QUESTIONS}::test_command_of_the_readme_answers_its_question"),
        "main_ppo": VERL,
        "view examples/dumps": By(f"{DUMPS}::test_view_takes_paths"),
        "": TYPED,
    },
    "CONTRIBUTING.md": {"make test": DevelopersRun()},
    "examples/verl/README.md": {
        "train.sh": By("tests/verl/test_example.py::test_flags_of_the_launch_script_exist_in_verl")
    },
    "docs/agents.md": {
        "langgraph_agent.py": By(
            "tests/agents/test_examples.py::test_every_span_is_recorded_and_delivered",
            "tests/agents/test_examples.py::test_every_span_is_recorded_and_delivered_on_ray",
        ),
        "OpenAIInstrumentor().instrument()": By(
            f"{JOINED_OPENAI}::test_call_has_identity_messages_and_tokens"
        ),
        "tracer_provider=": By(f"{JOINED_OPENAI}::test_instrumentor_that_holds_our_provider_records"),
        "pip install litellm": Skipped("installs LiteLLM's proxy from a package index"),
        "proxy/bin/litellm --config": By(
            "tests/black_box/test_proxy.py::test_turns_of_an_agent_are_model_calls_of_its_trajectory"
        ),
        "rollouts.py": Skipped("asks a model through LiteLLM's proxy"),
        "": TYPED,
    },
    "docs/collector.md": {
        "LANGFUSE": By("tests/collector/test_langfuse.py::test_every_span_has_what_langfuse_filters_by"),
        "langfuse": By("tests/collector/test_langfuse.py::test_every_span_has_what_langfuse_filters_by"),
        "": By("tests/collector/test_docs.py::test_the_first_five_minutes_end_with_traces_in_a_stack"),
    },
    "docs/configuration.md": {"": TYPED},
    "docs/engines.md": {
        "$ otel-rollout": By(f"{ENGINES}::test_output_is_the_pages"),
        "rollout.py": By("tests/vllm/test_engines_page.py::test_program_of_the_page_joins_the_servers_spans"),
        "vllm_on_ray.py": By(
            "tests/vllm/test_async_llm.py::test_example_has_the_engines_request_below_each_model_call"
        ),
        "node_agent.py": By(
            "tests/receiver/test_senders.py::test_example_of_an_agent_in_javascript_records_its_rollouts"
        ),
        "curl": By("tests/receiver/test_docs.py::test_request_of_the_shell_is_recorded"),
        "": TYPED,
    },
    "docs/dumps.md": {
        "view checkpoints": By(
            f"{DUMPS}::test_every_reading_command_opens_a_dump", f"{DUMPS}::test_view_takes_paths"
        ),
        "--map": By(f"{DUMPS}::test_patterns_and_forced_formats"),
        "otel-rollout export": By(
            "tests/dumps/test_export.py::test_atif_of_a_dump_is_read_again_with_the_same_facts",
            "tests/dumps/test_export.py::test_the_options_of_list_select",
        ),
        "RolloutIdentity": By(
            "tests/dumps/test_readers.py::test_a_reader_of_another_package_is_found_by_its_entry_point"
        ),
    },
    "docs/extending.md": {
        "$ python": By(f"{OWN_TRAINER}::test_commands_print_what_the_page_shows"),
        "AppendingLogbookExporter": By(
            f"{EXPORTER}::test_appending_exporter_of_the_page_numbers_its_batches"
        ),
        "TestLogbook": By(f"{EXPORTER}::test_suite_of_the_page_passes_outside_the_repository"),
        "test_logbook.py": By(f"{EXPORTER}::test_suite_of_the_page_passes_outside_the_repository"),
        "LogbookExporter": By(
            f"{EXPORTER}::test_exporter_of_the_page_delivers_what_spans_hold",
            f"{EXPORTER}::test_suite_of_the_page_passes_outside_the_repository",
        ),
        "LOGBOOK_URL": TYPED,
        "": By(f"{OWN_TRAINER}::test_code_of_the_page_is_in_the_example"),
    },
    "docs/index.md": {
        "plain_python.py": By("tests/test_examples.py::test_plain_python"),
        "pip install": By("tests/package/test_package.py::test_extra_alone_brings_what_it_is_for"),
        "otel-rollout status": TYPED,
        "doctor.examine()": TYPED,
        "": By("tests/docs_site/test_first_page.py::test_first_page_ends_with_a_trajectory_in_the_browser"),
    },
    "docs/look.md": {"": TYPED},
    "docs/mlflow.md": {
        "mlflow server": By(f"{MLFLOW}::test_server_command_of_the_page_serves_the_file"),
        "USERNAME": By(f"{MLFLOW}::test_variables_of_the_page_let_the_doctor_into_a_secured_server"),
        "STEP_METRICS": TYPED,
        "": By(f"{MLFLOW}::test_every_python_block_of_the_page_runs_and_every_search_finds"),
    },
    "docs/performance.md": {"make bench": DevelopersRun()},
    "docs/questions.md": {"": TYPED},
    "docs/recording.md": {
        "pytest.fixture": By(f"{NOTEBOOKS}::test_pytest_with_fixture_delivers_one_run"),
        '"none"': By(f"{NOTEBOOKS}::test_pytest_with_lines_against_tracing_records_nothing"),
        "notebook": By(f"{NOTEBOOKS}::test_cells_may_be_run_again"),
        "def answer(": By(f"{NOTEBOOKS}::test_cells_may_be_run_again"),
        "otel_rollout.shutdown()": By(f"{NOTEBOOKS}::test_cells_may_be_run_again"),
        "os.environ |=": By(f"{NOTEBOOKS}::test_cells_may_be_run_again"),
        "ray.init()": By(ON_RAY),
        "export": TYPED,
        "inject_headers": TYPED,
        "": By("tests/capture/test_operations_page.py::test_examples_record_what_the_page_says"),
    },
    "docs/reliability.md": {
        "status --check": By("tests/cli/test_probe.py::test_delivered_run_is_healthy_and_is_left_as_it_is"),
        "": TYPED,
    },
    "docs/table.md": {
        "from datasets import": By(
            "tests/table/test_datasets.py::test_datasets_hold_spans_examples_and_pairs"
        ),
        "table.ray(": By("tests/demo/test_table_on_ray.py::test_column_that_a_file_lacks_is_null"),
        "otel-rollout import": By(
            "tests/cli/test_importing.py::test_spool_of_a_run_is_imported",
            "tests/cli/test_importing.py::test_document_of_another_program_is_imported",
            "tests/viewer/test_import_from_mlflow.py::test_trajectories_of_mlflow_are_those_of_the_spool",
        ),
        "": TYPED,
    },
    "docs/training.md": {
        "$ otel-rollout": By("tests/analysis/test_training_page.py::test_output_is_the_pages"),
        "": TYPED,
    },
    "docs/trl.md": {
        "make demo-train": DevelopersRun(),
        "Qwen/": Skipped("loads a model from a hub"),
        "import sample": By("tests/trl/test_training.py::test_rollout_function_has_a_span_per_prompt"),
        "": TYPED,
    },
    "docs/tutorial.md": {
        "import mlflow": By(
            "tests/mlflow/test_mlflow_coming_from.py::test_the_same_searches_find_traces_of_both_programs"
        ),
        "OTEL_TRACES_EXPORTER=mlflow OTEL_ROLLOUT_PROJECT": By(
            "tests/mlflow/test_mlflow_coming_from.py::test_the_same_searches_find_traces_of_both_programs"
        ),
        "import weave": By(
            "tests/weave/test_weave_coming_from.py::test_the_same_filters_find_calls_of_both_programs"
        ),
        "OTEL_TRACES_EXPORTER=weave": By(
            "tests/weave/test_weave_coming_from.py::test_the_same_filters_find_calls_of_both_programs"
        ),
        "import logfire": By(f"tests/foreign/{COMING_FROM}::test_their_program_runs"),
        "verl.utils.rollout_trace": By(
            f"tests/verl/{COMING_FROM}::test_their_program_records_without_a_change"
        ),
        "rollout_trace_attr(": By(
            f"tests/{COMING_FROM}::test_our_program_records_one_trajectory",
            "tests/test_tutorial.py::test_tutorial_leads_to_the_cause",
        ),
        "": By(
            "tests/test_tutorial.py::test_tutorial_leads_to_the_cause",
            "tests/package/test_tutorial.py::test_tutorial_needs_no_more_than_it_installs",
        ),
    },
    "docs/verifiers.md": {"": TYPED},
    "docs/verl.md": {"main_ppo": VERL, "": TYPED},
    "docs/volume.md": {"": TYPED},
    "docs/weave.md": {
        "weave.init": By(
            "tests/weave/test_weave_end_to_end.py::test_demo_fills_weave_with_searchable_trajectories"
        ),
        "": TYPED,
    },
    "docs/why.md": {"benchmarks.health_faults": DevelopersRun(), "": TYPED},
}
"""Page → text of a block → how the block is run. The first text that the block contains counts."""

SCRATCH: dict[str, Scratch] = {
    "README.md": Scratch(
        table="demo",
        files=PROGRAM,
        stands_in=("pip", "make"),
        prelude="import mlflow\nimport otel_rollout\nmlflow.set_tracking_uri('sqlite:///mlflow.db')\n",
    ),
    "docs/agents.md": Scratch(
        files=PROGRAM,
        stands_in=("pip", "my-agent"),
        prelude="import os\nos.environ['LITELLM_MASTER_KEY'] = 'sk-1'\n"
        "question = 'Why?'\ndef grade(answer=None): return 1.0\n"
        "class graph:\n    @staticmethod\n    def invoke(given): return given\n",
    ),
    "docs/engines.md": Scratch(
        files={**PROGRAM, "agent.js": "process.exit(process.env.PATH ? 0 : 1)"},
        stands_in=("pip",),
        prelude="import asyncio, os, otel_rollout\nfrom otel_rollout import rollout_trace_op\n",
    ),
    "docs/extending.md": Scratch(
        files=PROGRAM, replaced={"OTEL_TRACES_EXPORTER=logbook": "OTEL_TRACES_EXPORTER=spool"}
    ),
    "docs/index.md": Scratch(table="demo"),
    "docs/look.md": Scratch(table="demo", stands_in=("pip",)),
    "docs/mlflow.md": Scratch(),
    "docs/questions.md": Scratch(table="demo", replaced={"$SLURM_JOB_ID": "17"}),
    "docs/recording.md": Scratch(
        files=PROGRAM,
        prelude="import opentelemetry.context\nurl = 'http://127.0.0.1:8000/v1'\n"
        "class request:\n    headers = {}\n",
    ),
    "docs/reliability.md": Scratch(
        files={"my_project/privacy.py": "def redact(name, value):\n    return value\n"}
    ),
    "docs/table.md": Scratch(table="demo"),
    "docs/training.md": Scratch(
        table="demo",
        stands_in=("pip",),
        prelude="import otel_rollout\nfrom otel_rollout import rollout_trace_op\n"
        "class mask:\n    @staticmethod\n    def any(axis): return [True, False]\n"
        "advantages = [0.5, -0.5]\nlags = differences = [1, 2]\nrows = [3, 3]\nindices = [0, 1]\n"
        "reasons = [None, 'overlong']\n",
    ),
    "docs/trl.md": Scratch(
        table="demo", files=PROGRAM, stands_in=("pip", "mlflow"), replaced={"$SLURM_JOB_ID": "17"}
    ),
    "docs/verifiers.md": Scratch(table="demo", stands_in=("pip", "vf-eval")),
    "docs/verl.md": Scratch(
        table="demo",
        replaced={"/data/rollouts": "./rollouts", "32/5": "1/29", "--step 32": "--step 1"},
    ),
    "docs/weave.md": Scratch(files=PROGRAM, stands_in=("pip", "wandb")),
    "docs/why.md": Scratch(
        table="generated",
        replaced={
            "--compare RUN": "--compare older",
            "--step 12 --validation": "--step 10 --validation",
            "group 1/29": "group 2/3",
            "validation/3/7": "validation/10/1000000",
            "first-try": "grpo-2",
        },
    ),
}
"""Page → what its scratch directory has; by default nothing."""


def way_of(block: Block) -> tuple[str, Way] | None:
    """Return the first text of the table that a block contains, and how the block is run."""
    return next(((text, way) for text, way in ROWS.get(block.page, {}).items() if text in block.text), None)
