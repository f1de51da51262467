"""What is measured: prompts of named sets and files, a limited number of them drawn evenly.

Knows: prompt sets, files, kinds. Does not know: models, methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from entmtp.data import OnBadLine, Prompt, load_prompts, refuse_line
from entmtp.errors import BadInput


def load_workload(
    specs: Sequence[str], limit: int | None = None, on_bad: OnBadLine = refuse_line
) -> tuple[Prompt, ...]:
    """The prompts of all sets and files; of more than `limit`, the same ones every time.

    A limit is shared evenly among the files, and within a file among its kinds; from each kind
    prompts are taken at even distances, so that an ordered file is seen from end to end.

    Raises:
        BadInput: a set or file is not there or broken, or the limit leaves nothing.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"a limit of {limit} prompts leaves nothing to measure; give 1 or more")
    files = [load_prompts(spec, on_bad) for spec in specs]
    if limit is None:
        return tuple(prompt for file in files for prompt in file)
    quotas = even_quotas([len(file) for file in files], limit)
    return tuple(
        prompt
        for file, quota in zip(files, quotas, strict=True)
        for prompt in _draw_by_kind(file, quota)
    )


def even_quotas(sizes: Sequence[int], total: int) -> list[int]:
    """Share `total` among groups as evenly as their sizes allow; first groups get the odd ones."""
    quotas = [0] * len(sizes)
    left = min(total, sum(sizes))
    while left:
        for group, size in enumerate(sizes):
            if left and quotas[group] < size:
                quotas[group] += 1
                left -= 1
    return quotas


def _draw_by_kind(prompts: Sequence[Prompt], quota: int) -> list[Prompt]:
    """`quota` of the prompts, in their order."""
    kinds: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        kinds.setdefault(prompt.kind, []).append(index)
    groups = list(kinds.values())
    quotas = even_quotas([len(group) for group in groups], quota)
    chosen = [
        group[place * len(group) // count]
        for group, count in zip(groups, quotas, strict=True)
        for place in range(count)
    ]
    return [prompts[index] for index in sorted(chosen)]
