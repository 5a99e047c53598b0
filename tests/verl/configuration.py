"""Compose verl's own configuration for a job of the tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module

from otel_rollout_demo.tokenizer import TOKENIZER_DIR

HERE = Path(__file__).parent
TOOLS = """\
tools:
  - class_name: tests.verl.base_tools.NoteTool
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: note
        description: Keeps a text in mind.
        parameters: {type: object, properties: {text: {type: string}}, required: [text]}
  - class_name: tests.verl.base_tools.BrokenTool
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: broken
        description: Does not work.
        parameters: {type: object, properties: {}, required: []}
"""


def make_model(directory: Path) -> Path:
    """Write a model without weights: the demo's tokenizer and a configuration."""
    shutil.copytree(TOKENIZER_DIR, directory, dirs_exist_ok=True)
    (directory / "config.json").write_text(
        json.dumps({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})
    )
    return directory


def configuration(directory: Path, overrides: list[str]) -> Any:
    """Return the configuration of ``python -m verl.trainer.main_ppo``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tools.yaml").write_text(TOOLS)
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={make_model(directory / 'model')}",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.rollout.mode=async",
                "actor_rollout_ref.rollout.n=4",
                "actor_rollout_ref.rollout.val_kwargs.n=1",
                "actor_rollout_ref.rollout.prompt_length=1024",
                "actor_rollout_ref.rollout.response_length=512",
                "actor_rollout_ref.rollout.agent.num_workers=2",
                "actor_rollout_ref.rollout.multi_turn.enable=True",
                "actor_rollout_ref.rollout.multi_turn.format=hermes",
                f"actor_rollout_ref.rollout.multi_turn.tool_config_path={directory / 'tools.yaml'}",
                f"reward.custom_reward_function.path={HERE / 'reward.py'}",
                "trainer.project_name=verl-tests",
                "trainer.experiment_name=scripted",
                "ray_kwargs.ray_init.num_cpus=4",
                "+ray_kwargs.ray_init.include_dashboard=False",
                "+ray_kwargs.ray_init.address=local",  # never a cluster that others have started here
                f"actor_rollout_ref.rollout.multi_turn.function_tool_path={HERE / 'function_tools.py'}",
                "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
                *overrides,
            ],
        )
