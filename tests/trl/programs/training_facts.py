"""Train in ways in which TRL uses, masks, corrects or drops rows: ``training_facts DIRECTORY [NAME ...]``.

The trainers save what TRL's own methods return, by the tokens of the completion. ``facts.json`` holds it, and
a digest of the weights of each training.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from tests.trl import script, scripted_model

DIRECTORY = Path(sys.argv[1])
SHIFT = 0.75
"""Nats by which the sampler is off in the planted turn."""
SHIFTED_ROW, SHIFTED_TURN = 2, 2
COMMON: dict[str, Any] = {
    "num_generations": script.SIBLINGS,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 64,
    "shuffle_dataset": False,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
}
facts: dict[str, dict[str, Any]] = {}


def key_of(batch: Any, row: int) -> str:
    """Return the tokens of a row's completion."""
    pad = scripted_model.tokenizer().pad_token_id
    ids = batch["completion_ids"][row].tolist()
    return json.dumps([id_ for id_ in ids if id_ != pad])


Trainer: Any = object
"""What the trainers below are as well."""


class Saving(Trainer):  # type: ignore[misc]
    """Saves what the trainer's methods return, in order."""

    def start(self, name: str) -> None:
        """Save under this name."""
        self.saved: dict[str, Any] = {"generated": [], "uses": [], "log_probs": []}
        facts[name] = self.saved

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._made: list[Any] = []
        result = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.saved["generated"].append(self._rows(result))
            self.saved["log_probs"].append([made.tolist() for made in self._made])
        return result

    def _rows(self, batch: Any) -> list[dict[str, Any]]:
        columns = (
            "advantages",
            "completion_mask",
            "tool_mask",
            "old_per_token_logps",
            "sampling_per_token_logps",
            "importance_sampling_ratio",
        )
        return [
            {"key": key_of(batch, row)} | {c: batch[c][row].tolist() for c in columns if c in batch}
            for row in range(len(batch["advantages"]))
        ]

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._masks: dict[str, Any] = {}
        self._made = []
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        rows = self._rows(inputs)
        for row, fact in enumerate(rows):
            fact["log_probs"] = self._made[0][row].tolist()
            fact["global_step"] = self.state.global_step
            for name, mask in self._masks.items():
                fact[name] = mask[row].tolist()
        self.saved["uses"].append(rows)
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._made.append(result[0].detach())
        return result


class SavingGRPO(Saving, GRPOTrainer):  # type: ignore[misc]
    """Saves the masks of the loss, too."""

    def get_off_policy_mask(self, *args: Any, **kwargs: Any) -> Any:
        mask = GRPOTrainer.get_off_policy_mask(*args, **kwargs)
        self._masks["off_policy"] = mask
        return mask

    def get_high_entropy_mask(self, *args: Any, **kwargs: Any) -> Any:
        mask = super().get_high_entropy_mask(*args, **kwargs)
        self._masks["entropy"] = mask
        return mask


class SavingRLOO(Saving, RLOOTrainer):  # type: ignore[misc]
    """Saves nothing more."""


class Choosy(SavingGRPO):
    """Generates twice, and keeps the first half of the first batch and the second half of the second."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        first, second = (super(Choosy, self)._generate_and_score_completions(inputs) for _ in range(2))
        half = len(inputs) // 2
        width = min(first["completion_ids"].shape[1], second["completion_ids"].shape[1])

        def cut(tensor: Any) -> Any:
            return tensor[:, :width] if tensor.ndim == 2 else tensor

        return {
            name: torch.cat([cut(first[name])[:half], cut(second[name])[half:]])
            if first[name].ndim
            else first[name]
            for name in first
        }


class OwnLoss(SavingGRPO):
    """Computes the loss without the method that is traced."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._masks, self._made = {}, []
        return self._compute_loss(model, inputs)


_replies = 0


def reply(text: str, row: int) -> str:
    """Return a reply that no other row has; every fourth does not end."""
    global _replies
    _replies += 1
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    number = " ".join(words[int(digit)] for digit in str(_replies))
    return f"{number} {'so ' * (_replies % 3)}" + (script.ENDLESS if _replies % 4 == 3 else "")


def uneven(completions: Any, **columns: Any) -> list[float | None]:
    """Reward lengths; nothing for completions with a five, nonsense for one."""
    texts = [completion[-1]["content"] for completion in completions]
    return [
        None if "five" in text else float("inf") if text.startswith("two one") else len(text) / 7
        for text in texts
    ]


def ranked(completions: Any, **columns: Any) -> list[float]:
    """Reward each place in a group; the row whose sampler is off gets least."""
    return [(3.0, 2.0, 0.5, 4.25)[row % script.SIBLINGS] for row in range(len(completions))]


def prompts(count: int = 8) -> Dataset:
    """Return prompts that differ."""
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Say {n}."}] for n in range(count)]})


def make(class_: Any, config: Any, name: str, reward: Any = uneven, **options: Any) -> Any:
    """Return a trainer that saves under a name."""
    arguments = options.pop("arguments", {})
    model = scripted_model.model(reply)
    model.config._name_or_path = str(DIRECTORY / "reference")
    trainer = class_(
        model=model,
        processing_class=scripted_model.tokenizer(),
        args=config(**{**COMMON, "output_dir": str(DIRECTORY / name), **options}),
        reward_funcs=reward,
        train_dataset=prompts(),
        **arguments,
    )
    trainer.start(name)
    return trainer


# --- a sampler of one's own --------------------------------------------------------------------------------


def sampler(shift: float) -> Callable[[list[Any], Any], dict[str, Any]]:
    """Return a ``rollout_func`` of two turns with the log probabilities of the weights, off in one turn."""
    words = scripted_model.tokenizer()

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        found: dict[str, list[Any]] = defaultdict(list)
        for row, _ in enumerate(prompts):
            turns = [words(reply("", row).removesuffix(script.ENDLESS))["input_ids"] for _ in range(2)]
            ids = [*turns[0], *words("tool")["input_ids"], *turns[1], words.eos_token_id]
            model_tokens = [1] * len(turns[0]) + [0] * (len(ids) - len(turns[0]) - len(turns[1]) - 1)
            prompt = words("Play.")["input_ids"]
            log_probs = of_weights(trainer, prompt, ids)
            if row == SHIFTED_ROW:
                first = len(model_tokens)
                log_probs[first:] = [value - shift for value in log_probs[first:]]
            found["prompt_ids"].append(prompt)
            found["completion_ids"].append(ids)
            found["logprobs"].append(log_probs)
            found["env_mask"].append([*model_tokens, *[1] * (len(turns[1]) + 1)])
        return dict(found)

    return rollout


def of_weights(trainer: Any, prompt: list[int], ids: list[int]) -> list[float]:
    """Return the log probabilities of tokens, as the trainer's weights give them."""
    with torch.no_grad():
        logits = trainer.model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    chosen: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
    return chosen


def corrected(name: str, mode: str, **options: Any) -> Any:
    """Train with the correction that TRL has for vLLM."""
    trainer = make(
        SavingGRPO,
        GRPOConfig,
        name,
        max_steps=1,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_max=1.5,
        reward=ranked,
        arguments={"rollout_func": sampler(SHIFT)},
        **options,
    )
    trainer.use_vllm = True
    trainer._last_loaded_step = 0
    trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    return trainer


# --- the trainings -----------------------------------------------------------------------------------------


def buffered() -> Any:
    """Generate for two steps, use each row twice, and end before the last rows are used; then go on."""
    options = {"steps_per_generation": 2, "num_iterations": 2, "mask_truncated_completions": True}
    trainer = make(SavingGRPO, GRPOConfig, "buffered", max_steps=5, scale_rewards="none", **options)
    trainer.train()
    return trainer


def again() -> Any:
    """Train again with what the first training has left over: the numbers of its steps repeat."""
    trainer = make(SavingGRPO, GRPOConfig, "again", max_steps=1, steps_per_generation=2)
    trainer.train()
    trainer.train()
    return trainer


def planted() -> Any:
    """Train with a sampler that is off in one turn; the weights that generate are those that learn."""
    arguments = {"rollout_func": sampler(SHIFT)}
    trainer = make(SavingGRPO, GRPOConfig, "planted", reward=ranked, max_steps=1, arguments=arguments)
    trainer.train()
    return trainer


def planted_and_buffered() -> Any:
    """Train with this sampler in several steps."""
    trainer = make(
        SavingGRPO,
        GRPOConfig,
        "planted_and_buffered",
        max_steps=2,
        steps_per_generation=2,
        off_policy_mask_threshold=0.1,
        reward=ranked,
        arguments={"rollout_func": sampler(-SHIFT)},
    )
    trainer.train()
    return trainer


def corrected_tokens() -> Any:
    """Leave out tokens with a large importance sampling ratio."""
    trainer = corrected("corrected_tokens", "token_mask")
    trainer.train()
    return trainer


def corrected_rows() -> Any:
    """Leave out rows with a large importance sampling ratio."""
    trainer = corrected("corrected_rows", "sequence_mask")
    trainer.train()
    return trainer


def entropy() -> Any:
    """Learn from tokens of high entropy."""
    trainer = make(SavingGRPO, GRPOConfig, "entropy", max_steps=1, top_entropy_quantile=0.05)
    trainer.train()
    return trainer


def rloo() -> Any:
    """Clip the rewards, and subtract a penalty from them."""
    reference = scripted_model.model(reply)
    with torch.no_grad():
        for weight in reference.parameters():
            weight.mul_(1.5)
    reference.save_pretrained(DIRECTORY / "reference")
    described = DIRECTORY / "reference" / "config.json"
    described.write_text(described.read_text().replace("ScriptedModel", "Qwen2ForCausalLM"))
    options = {"beta": 0.5, "reward_clip_range": (0.5, 2.5), "steps_per_generation": 2}
    trainer = make(SavingRLOO, RLOOConfig, "rloo", max_steps=2, normalize_advantages=False, **options)
    trainer.train()
    return trainer


def choosy() -> Any:
    """Drop half of what was generated."""
    trainer = make(Choosy, GRPOConfig, "choosy", max_steps=2)
    trainer.train()
    return trainer


def own_loss() -> Any:
    """Use a loss that is not seen."""
    trainer = make(OwnLoss, GRPOConfig, "own_loss", max_steps=1, mask_truncated_completions=True)
    trainer.train()
    return trainer


def digest(trainer: Any) -> str:
    """Return a digest of a trainer's weights."""
    found = hashlib.sha256()
    for name, weight in sorted(trainer.model.state_dict().items()):
        found.update(name.encode() + weight.numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    """Run each training; the order is part of their prompts' identity."""
    runs: list[Callable[[], Any]] = [
        buffered,
        again,
        planted,
        planted_and_buffered,
        corrected_tokens,
        corrected_rows,
        entropy,
        rloo,
        choosy,
        own_loss,
    ]
    for run in runs:
        if sys.argv[2:] and run.__name__ not in sys.argv[2:]:
            continue
        trainer = run()
        facts[run.__name__]["digest"] = digest(trainer)
        facts[run.__name__]["loss"] = trainer.state.log_history[0].get("loss")
    (DIRECTORY / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
