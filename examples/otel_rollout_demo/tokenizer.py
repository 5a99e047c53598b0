"""Convert chat messages to token ids and back.

The tokenizer is the demo's own, or that of any chat model.

A rollout only appends: the ids that a model has generated stay, and only the turns between them are rendered
and encoded. Rendering the whole conversation again could give ids that the model has not seen.
"""

from __future__ import annotations

from typing import Any, Final

from otel_rollout_demo.dataset import DATA, Message

TOKENIZER_DIR: Final = DATA / "tokenizer"


def load_tokenizer(model: str | None = None) -> Any:
    """Load the tokenizer of ``model``; without a model, the demo's own.

    The model is a path or a Hugging Face name. The demo's own tokenizer needs no download.
    """
    if model is None:
        # Not AutoTokenizer: it imports torch, which takes 5 s and is not needed for the scripted model.
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(str(TOKENIZER_DIR))
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if not tokenizer.chat_template:
        raise ValueError(f"The tokenizer of {model} has no chat template. Choose a chat (instruct) model.")
    return tokenizer


class ChatTokenizer:
    """Encode the turns of one conversation format."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id: int = tokenizer.eos_token_id
        # New messages are rendered after this short conversation, whose own text is then removed.
        self._base: list[Message] = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": "reply"},
        ]
        self._base_text = self._render(self._base)
        _, self._eos, self._after_reply = self._base_text.rpartition(tokenizer.eos_token)

    def prompt_ids(self, messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
        """Return the ids of a conversation's beginning, up to the assistant's turn."""
        return self.encode(self._render(messages, tools=tools, add_generation_prompt=True))

    def turn_ids(self, messages: list[Message], *, closed: bool) -> list[int]:
        """Return the ids between an assistant's turn and the assistant's next turn.

        They are the end of the turn, ``messages``, and the beginning of the next turn.

        ``closed`` tells that the model has generated the end token itself.
        """
        text = self._render([*self._base, *messages], add_generation_prompt=True)
        new = self._after_reply + text[len(self._base_text) :]
        return self.encode(new if closed else self._eos + new)

    def decode(self, ids: list[int], *, keep_special: bool = False) -> str:
        """Return the text of ids, with or without the tokens that mark turns."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=not keep_special)
        return text

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, which may contain turn marks; nothing is added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _render(self, messages: list[Message], **options: Any) -> str:
        text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, **options)
        return text
