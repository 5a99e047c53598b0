"""From chat messages to token ids and back, for the demo's own tokenizer or that of any chat model.

A rollout only ever appends: the ids a model has produced are kept as they are, and the turns between are
rendered and encoded alone. Rendering the whole conversation again would give other ids than those the model
has seen.
"""

from __future__ import annotations

from typing import Any, Final

from otel_rollout_demo.dataset import DATA, Message

TOKENIZER_DIR: Final = DATA / "tokenizer"


def load_tokenizer(model: str | None = None) -> Any:
    """The tokenizer of ``model`` (a path or a Hugging Face name), or the demo's own (no download)."""
    if model is None:
        # Not AutoTokenizer: it imports torch, 5 s that the scripted model has no use for.
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(str(TOKENIZER_DIR))
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if not tokenizer.chat_template:
        raise ValueError(f"The tokenizer of {model} has no chat template. Choose a chat (instruct) model.")
    return tokenizer


class ChatTokenizer:
    """Encodes the turns of one conversation format."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id: int = tokenizer.eos_token_id
        # A stand-in conversation: what a template puts after it belongs to the new messages alone.
        self._base: list[Message] = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": "reply"},
        ]
        self._base_text = self._render(self._base)
        _, self._eos, self._after_reply = self._base_text.rpartition(tokenizer.eos_token)

    def prompt_ids(self, messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
        """A conversation's beginning, up to where the assistant speaks."""
        return self.encode(self._render(messages, tools=tools, add_generation_prompt=True))

    def turn_ids(self, messages: list[Message], *, closed: bool) -> list[int]:
        """What lies between an assistant's turn and its next one: its end, ``messages``, the next beginning.

        ``closed`` says that the model ended its turn itself, with the end token.
        """
        text = self._render([*self._base, *messages], add_generation_prompt=True)
        new = self._after_reply + text[len(self._base_text) :]
        return self.encode(new if closed else self._eos + new)

    def decode(self, ids: list[int], *, keep_special: bool = False) -> str:
        """The text of ids, without the tokens that mark turns unless they are to be kept."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=not keep_special)
        return text

    def encode(self, text: str) -> list[int]:
        """The ids of a text, turn marks included, with nothing added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _render(self, messages: list[Message], **options: Any) -> str:
        text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, **options)
        return text
