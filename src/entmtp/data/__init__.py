"""Prompts and conversations in, ids out; and the cache that fetched things lie in.

Knows: files, packages on PyPI, a tokenizer's chat template. Does not know: models.
"""

from entmtp.data.chat import chat_ids, plain_ids
from entmtp.data.lines import OnBadLine, SkippedLines, is_text, refuse_line
from entmtp.data.messages import Message
from entmtp.data.prompts import PROMPT_SETS, Prompt, load_prompts, packaged_prompts, read_prompts

__all__ = [
    "PROMPT_SETS",
    "Message",
    "OnBadLine",
    "Prompt",
    "SkippedLines",
    "chat_ids",
    "is_text",
    "load_prompts",
    "packaged_prompts",
    "plain_ids",
    "read_prompts",
    "refuse_line",
]
